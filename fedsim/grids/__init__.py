"""Grids: where clients run, in this process, on Ray, or on Flower's runtimes.

Start at `executor.py`, which cuts a cohort into shards (`sharding.py`), sends them and adds up the
replies (`records.py`). `ray_worker.py` answers a shard in a worker on Ray. `ray_grid.py` gives the
shards of a lost worker to another, up to five times; `ray_cluster.py` starts or joins a cluster.
`collective.py` has workers exchange sums and parameters (`member.py`), a share each (`shares.py`).
`build.py` makes the executor that a config names.
No other folder uses internals of Flower and Ray.
"""
