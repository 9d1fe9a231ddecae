"""Accounting: from the mechanism of a round to the (ε, δ) of a run.

events.py        the cost of one round, as a value
accountants.py   rounds to ε or δ, by name; the methods are in methods/
trade_off.py     bounds on any attacker, from every (ε, δ) at once
calibration.py   the least noise that keeps a promised ε
ledger.py        every release of a run, as a round charges it (fedsim/round.py); budget.py says
                 how many rounds an (ε, δ) still pays for
search.py        the cost of choosing the best of several runs
privacy_filter.py  a budget for runs that are chosen after looking at earlier ones
statement.py     an ε with everything that it must be said with, in words and as JSON
promise.py       that beside a model's weights, and whether it still holds
earlier_training.py  the promise that a starting point has itself

Imports samplers and `seeding`, never `data`, `runner` or `report`.
"""

PROMISE = "privacy.json"
"""A model's promise, beside its weights: see promise.py. Who only looks for it loads nothing."""
