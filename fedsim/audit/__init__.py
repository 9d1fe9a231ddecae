"""Audits of one training: lower bounds on ε from what an attacker sees of it.

`real_run.py` plants canaries in the space of updates and sees every release; `black_box.py` plants
users with texts and sees losses of the final model. Bounds of one run are in `one_run.py` and
`f_dp.py`. Audits of fedsim's own mechanisms are tests: `tests/privacy/mechanism_audit`.
"""
