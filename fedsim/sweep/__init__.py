"""Many runs: grids of configs, comparisons, tuning, repetitions over seeds.

Start at `compare.py` for runs side by side and at `measure.py` for intervals over seeds. A run
itself is `fedsim.runner`.
"""
