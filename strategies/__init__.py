"""Strategies: builders of round plans, from a config and its materials.

Start at `uls.py`: a strategy says what is sampled, which task computes, and how sums are estimated.
`common.py` holds what several read from the config. `flower/` is for Flower apps of your own.
Imports `fedsim`, never `clients`: tasks are named.
"""
