"""Gradient engines beside the non-private floor. Start at `benchmark.py`."""
