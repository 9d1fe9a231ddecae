"""Studies: each recomputes a figure, a table or a claim of a paper.

A study is a function `run(out, *, quick)` registered under `fedsim.studies`, in the folder of its
paper. `common/` writes its table and picture, and runs the grids of studies that train.
"""
