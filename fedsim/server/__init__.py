"""What the server's step is made of: torch's optimizers by name, the rate over rounds, averages.

torch_optimizers.py  the keys and the checks of each optimizer of torch.optim
debiased_adam.py     Adam whose second moment is freed of the noise
over_rounds.py       the learning rate of a round, and the average of the parameters
"""
