"""Accounting: from the mechanism of a round to the (ε, δ) of a run.

events.py        what one round costs, as a value
accountants.py   rounds to ε or δ, by name; the methods are in pld, mixture_pld, renyi,
                 random_allocation, ...
calibration.py   the least noise that keeps a promised ε
ledger.py        every release of a run; budget.py says what is left of an (ε, δ)
statement.py     an ε with everything that it must be said with, in words and as JSON

Imports the mechanism's values (`sampling`, `clip_policy`), never `data`, `runner` or `report`.
"""
