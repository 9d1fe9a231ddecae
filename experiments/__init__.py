"""Experiments: the demo, studies of the papers, benchmarks.

`demo.py` is `fedsim demo`; `studies/` are `fedsim study`, a folder a paper; `benchmarks/` are
`fedsim bench`; `configs/` are examples, `flower_app` and `flower_quickstart` what `flwr run` takes.
`projection.py`, `filter_cost.py` and `search_prices.py` compute figures of the docs. Imports all
other packages; none imports it.
"""
