"""Times of gradient engines relative to non-private training. Start at `bench_engines.py`."""
