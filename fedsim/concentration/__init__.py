"""The concentration filter of Asi & Liu (2024): full participation, and noise by concentration.

sampling.py  every user, every round, and the sparse-vector test that may halt a run (no torch)
filter.py    the filtered mean with its proved sensitivity, and the executor that tests and filters

Its price is `fedsim.accounting.methods.above_threshold`, its builder `strategies/asi_liu.py`.
Imports the mechanism (fedsim's top) only. Start with `FilteredMean`.
"""
