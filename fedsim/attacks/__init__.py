"""Attacks on finished runs: infer whether a user was trained on.

Start at `user_inference.py` (Kandpal et al. 2023). `roc.py` measures how well scores separate
members from others, and bounds what (ε, δ) allows any such attack.
"""
