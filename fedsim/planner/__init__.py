"""Planning before training: which strategy, group size and cohort, and how much noise.

Start at `weighing.py`, which is `fedsim plan`.
"""
