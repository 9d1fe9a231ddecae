"""Times of a round without its gradients. Start at `bench_grids.py`."""
