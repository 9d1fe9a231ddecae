"""Studies: each recomputes a figure, a table or a claim of a paper.

A study is a function `run(out, *, quick)` in the folder of its paper, registered under
`fedsim.studies` in pyproject.toml; `mcmahan_2018/clip_noise.py` is a short one to begin from.
`common/` writes its table and picture (`output.py`, which lists the names of further files), and
runs the grids of studies that train.
"""
