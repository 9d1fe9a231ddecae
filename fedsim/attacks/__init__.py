"""Attacks on finished runs: infer whether a user's text was in the training data.

Start at `user_inference.py` (Kandpal et al. 2023). `roc.py` measures how well scores separate
members from non-members.
"""
