"""The privacy cost of settings chosen on private text.

Papernot and Steinke 2022, "Hyperparameter Tuning with Renyi Differential Privacy",
arXiv:2110.03620; the privacy cost is from Koskela, Redberg and Wang 2024. See `private_tuning.py`.
"""
