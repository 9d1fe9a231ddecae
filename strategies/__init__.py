"""Strategies: build round plans from a config and its materials.

Start with `uls.py` (user-level sampling) or `els.py` (example-level sampling). A strategy chooses
the sampled unit, the task and the estimator; `fedsim/strategy.py` fills in the rest from the
config. `flower/` is a strategy for your own Flower apps.
Imports `fedsim`, never `clients`: tasks are referred to by name.
"""
