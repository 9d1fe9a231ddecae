"""Reports of runs: tables, pictures and pages.

Start at `schema.py`, the types of `report.json`. `grid_result.py` holds a comparison of runs or of
a grid over seeds, and its table; `tables.py` shows tables. `figures.py` defines figures as values;
`drawing.py` draws them with matplotlib, as SVG in pages and as PNG, SVG and PDF. The content of
figures is in `html.py` (one run) and `grid_page.py` (a comparison). `attack_report.py` has the
types of `attack.json`, `attack_table.py` compares attacks. `templates` holds the pages. Studies
draw their figures in `experiments/studies/common`, `fedsim bench` in
`experiments/benchmarks/picture.py`.
"""
