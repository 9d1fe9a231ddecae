"""Audits: lower bounds on ε from what an attacker sees of releases.

`real_run.py` audits one training with planted users, `mechanism.py` the exact round of a plan,
`mutants.py` fedsim with planted bugs. Bounds from many trials are in `bounds.py`, those of
one run in `one_run.py`.
"""
