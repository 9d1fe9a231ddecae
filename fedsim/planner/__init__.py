"""Planning before training: which strategy, group size and cohort, and how much noise.

Start at `compare_strategies.py`, which is `fedsim plan`; `mechanisms.py` weighs samplers and
correlated noise at the same promise. `owners.py` plans for texts with several owners.
"""
