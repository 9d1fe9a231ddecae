"""Accounting: from one round's mechanism to (ε, δ) for every user.

events.py        what one round costs, as a value
accountants.py   rounds to ε or δ, by name; the methods are in pld, mixture_pld, renyi, ...
calibration.py   the least noise that keeps a promised ε
ledger.py        every release of a run; budget.py says what is left of a promise
statement.py     the promise in words

Imports the mechanism's values (`sampling`, `clip_policy`), never `data`, `runner` or `report`.
"""
