"""Attacks on finished runs: can a user be told to have been trained on?

Start at `user_inference.py` (Kandpal et al. 2023). `bounds.py` is what (ε, δ) allows any such
attack, `roc.py` how well scores tell members from others.
"""
