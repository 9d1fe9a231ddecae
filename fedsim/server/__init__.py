"""Parts of the server's step: torch's optimizers by name, learning rates, averages.

torch_optimizers.py  the keys and the checks of each optimizer of torch.optim
debiased_adam.py     Adam without the noise variance in its second moment
over_rounds.py       the learning rate of a round, and the average of the parameters
automatic_rate.py    a learning rate from public numbers; start_curvature.py: the curvature for it
"""
