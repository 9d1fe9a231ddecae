"""Times of gradient engines, over training without privacy. Start at `bench_engines.py`."""
