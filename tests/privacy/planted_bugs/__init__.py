"""Twenty planted bugs, each of which the audit or a contract must see.

bugs.py      the bugs, each as small as it shipped somewhere
game.py      a worst-case pair of data sets for a plan, and scores of its releases
mutants.py   each bug with the game that shows it, and the verdict
two_runs.py  the game of two runs that share a budget

`python -m tests.privacy.planted_bugs` prints a table of the verdicts; `test_audit_bugs.py` asserts.
"""
