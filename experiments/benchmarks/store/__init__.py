"""Building, opening and reading a token store. Start at `benchmark.py`."""
