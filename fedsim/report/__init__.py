"""Reports of runs: tables, pictures and pages.

Start at `schema.py`, the types of `report.json`. `comparison.py` lays finished runs side by side,
`grid_result.py` holds a grid over seeds, `tables.py` shows both. The figures are values of
`figures.py`; `drawing.py` draws them with matplotlib, as SVG in pages and as PNG, SVG and PDF. To
change the content of a figure, go to `html.py` for those of a run, `comparison.py` of a
comparison, `grid_page.py` of a grid. Pages are `templates`. Studies draw theirs in
`experiments/studies/common`, `fedsim bench` in `experiments/benchmarks/picture.py`.
"""
