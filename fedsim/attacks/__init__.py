"""Attacks on finished runs: what a promise kept, measured.

user_inference.py       was anything of this user trained on? (Kandpal et al. 2023)
bounds.py               what (ε, δ) allows any such attack
"""
