"""Accounting: from the mechanism of a round to the (ε, δ) of a run.

events.py        what one round costs, as a value
accountants.py   rounds to ε or δ, by name; the methods are in methods/
trade_off.py     what an attacker can make of it, from every (ε, δ) at once
calibration.py   the least noise that keeps a promised ε
ledger.py        every release of a run; budget.py says what is left of an (ε, δ)
statement.py     an ε with everything that it must be said with, in words and as JSON

Imports samplers and `seeding`, never `data`, `runner` or `report`.
"""

PROMISE = "privacy.json"
"""A model's promise, beside its weights: see promise.py. Who only looks for it loads nothing."""

GIVEN = "given.json"
"""Beside weights that were given from Python and are not those of the folder that they were opened
from: the folder's name, and what it promises."""
