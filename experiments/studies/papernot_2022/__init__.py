"""Settings that are chosen on private text, and what that costs.

Papernot and Steinke 2022, "Hyperparameter Tuning with Renyi Differential Privacy",
arXiv:2110.03620; the prices are those of Koskela, Redberg and Wang 2024. `private_tuning.py`.
"""
