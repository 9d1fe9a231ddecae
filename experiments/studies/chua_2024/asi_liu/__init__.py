"""Asi & Liu (2024): every user in every round, with noise scaled to the gradients' concentration.

asi_liu.py     the strategy and its key; start here
sampling.py    every user in every round, and the sparse-vector test that may halt a run (no torch)
filter.py      the filtered mean with its proved sensitivity; the executor that tests and filters
accountant.py  the price: one test per run, and Gaussian releases

It is registered through entry points, like a plug-in.
"""
