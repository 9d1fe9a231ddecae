"""Grids: where clients run, in this process, on Ray, or on Flower's runtimes.

Start at `executor.py`, which cuts a cohort into shards, sends them and folds the replies;
`ray_grid.py` gives the shards of a lost worker to another. The only folder that touches the inside
of Flower and Ray.
"""
