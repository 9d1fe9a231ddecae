"""Audits: lower bounds on ε from what an attacker sees of releases.

`real_run.py` audits one training with planted users, `mechanism.py` the exact round of a plan.
Bounds from many trials are in `bounds.py`, those of one run in `one_run.py`. Start at
`mechanism.py`. That the audits see planted bugs is tested in `tests/privacy/planted_bugs`.
"""
