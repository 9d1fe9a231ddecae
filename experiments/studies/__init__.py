"""Studies: each recomputes a figure, a table or a claim of a paper.

A study is a function `run(out, *, quick)` in the folder of its paper, registered as entry point
`fedsim.studies` in pyproject.toml; `mcmahan_2018/clip_noise.py` is a short example. `common/`
writes a study's table and picture (`output.py`), and runs the grids of studies that train.
"""
