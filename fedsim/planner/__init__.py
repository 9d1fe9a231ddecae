"""Planning before training: choose strategy, group size, cohort and noise.

Start at `compare_strategies.py`, which is `fedsim plan`. `mechanisms.py` compares samplers and
correlated noise at the same ε and δ. `owners.py` plans for texts with several owners.
"""
