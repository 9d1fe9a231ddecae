"""Experiments: the demo, studies of the papers, benchmarks.

`demo.py` is `fedsim demo`; `studies/` are `fedsim study`, a folder a paper; `benchmarks/` are
`fedsim bench`. Imports all other packages; none imports it.
"""
