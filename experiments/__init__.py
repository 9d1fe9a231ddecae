"""Experiments: the demo, studies of the papers, benchmarks.

`demo.py` is `fedsim demo`; `studies/` (one folder per paper) is `fedsim study`; `benchmarks/` is
`fedsim bench`. `configs/` has example configs; `flower_app` and `flower_quickstart` are apps for
`flwr run`. `projection.py`, `filter_cost.py` and `search_prices.py` compute numbers for the docs.
This package imports all other packages; none imports it.
"""
