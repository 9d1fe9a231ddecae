"""Grids: where clients run, in this process, on Ray, or on Flower's runtimes.

Start at `executor.py`, which cuts a cohort into shards, sends them and folds the replies;
`ray_grid.py` gives the shards of a lost worker to another, up to five times, else the round fails;
on other grids it fails at once. A secure aggregation's mask on a worker's sum would be put on in
`records.py` (`ShardReply`), where the sum leaves its worker, and taken off in `executor.py` once
all are added up, where each worker's norm is checked now; `strategies/flower` and the filter of
Asi & Liu, which look at one client at a time, could not run under it. The only folder that touches
the inside of Flower and Ray.
"""
