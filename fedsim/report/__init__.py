"""Reports: what a run says about itself, and several runs side by side.

`schema.py` has the types of report.json, `html.py` renders pages from `templates/`, `pictures.py`
draws PNGs and `plots.py` plots for the pages; `measured/` is the same for grids over seeds.
"""
