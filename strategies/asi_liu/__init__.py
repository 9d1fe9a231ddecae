"""Asi & Liu (2024): every user in every round, and noise by how concentrated gradients are.

asi_liu.py     the strategy and its key; start here
sampling.py    every user, every round, and the sparse-vector test that may halt a run (no torch)
filter.py      the filtered mean with its proved sensitivity; the executor that tests and filters
accountant.py  its price: one test a run, Gaussian releases

It reaches fedsim by the entry points that any package can have.
"""
