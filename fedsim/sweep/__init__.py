"""Many runs: grids of configs, comparisons, tuning, repetitions over seeds.

Start at `compare.py` for comparisons of runs and at `measure.py` for intervals over seeds.
`fedsim.runner` does a single run.
"""
