"""Accounting: from the mechanism of a round to the (ε, δ) of a run.

events.py        the cost of one round
accountants.py   compute ε or δ of rounds, by an accountant's name; methods/ has the accountants
trade_off.py     bounds on any attacker, from all (ε, δ) pairs
calibration.py   find the smallest noise multiplier for an ε
ledger.py        all releases of a run, charged by fedsim/round.py
budget.py        ε left, and the number of rounds that still fit
search.py        the cost of choosing the best of several runs
privacy_filter.py  a budget for runs that are chosen after looking at earlier ones
statement.py     the privacy statement: an ε with all its terms, in words and as JSON
promise.py       privacy.json: the statement beside a model's weights, and its verification
earlier_training.py  statements on a model's earlier training

Imports samplers and `seeding`, never `data`, `runner` or `report`.
"""

PROMISE = "privacy.json"
"""Name of the file with a model's privacy statement; defined here so that its use is cheap."""
