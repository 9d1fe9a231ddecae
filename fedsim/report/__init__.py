"""What runs say about themselves, as tables, pictures and pages.

Start at `schema.py`, the types of `report.json`. `comparison.py` lays finished runs side by side,
`grid_result.py` holds a grid over seeds, `tables.py` shows both. To change what a figure shows, go
to `html.py` for those of a run, `comparison_page.py` of a comparison, `grid_charts.py` of a grid.
They are values of `charts.py`, which `pictures.py` draws as PNG and `plots.py` as interactive
figures of the pages; the look is in `style.py` and `templates`. Studies draw theirs in
`experiments/studies/common`, `fedsim bench` in `experiments/benchmarks/picture.py`.
"""
