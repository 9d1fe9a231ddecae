"""What runs say about themselves, as tables, pictures and pages.

Start at `schema.py`, the types of `report.json`. `comparison.py` lays finished runs side by side,
`grid_result.py` holds a grid over seeds; both are shown by `tables.py` and by `charts.py`, which
`pictures.py` draws as PNG and `plots.py` as interactive figures of the pages. `html.py` says which
figures a run's page has; the look is in `style.py` and `templates`. Studies draw theirs in
`experiments/studies/common`, `fedsim bench` in `experiments/benchmarks/picture.py`.
"""
