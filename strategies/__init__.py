"""Strategies: builders of round plans, from a config and its materials.

Start at `uls.py` (user-level sampling; `els.py` is example-level sampling): a strategy says what is
sampled, which task computes, and how sums are estimated; `fedsim/strategy.py` fills in the rest
from the config. `flower/` is a strategy for Flower apps of your own.
Imports `fedsim`, never `clients`: tasks are named.
"""
