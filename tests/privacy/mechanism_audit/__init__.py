"""Audits of fedsim's own mechanisms: real rounds with a worst-case target in, and without it.

Start at `mechanism.py`; `bounds.py` turns scores of independent trials into lower bounds on ε.
"""
