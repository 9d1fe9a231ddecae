"""Tasks: what a unit computes, from its examples to its update.

A task is registered as an entry point `fedsim.tasks`; start at `fedsgd.py`.
"""
