"""Times of a round besides its gradients. Start at `bench_grids.py`."""
