"""Times of gradient engines, over training without privacy. Start at `benchmark.py`."""
