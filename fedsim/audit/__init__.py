"""Audits of a single training: lower bounds on ε from an attacker's observations.

`real_run.py` plants canary updates, and its attacker sees all releases. `black_box.py` plants users
with texts, and its attacker sees losses of the final model. `one_run.py` and `f_dp.py` compute the
bounds. Audits of fedsim's own mechanisms are tests: `tests/privacy/mechanism_audit`.
"""
