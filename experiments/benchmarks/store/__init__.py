"""Building, opening and reading a token store. Start at `bench_store.py`."""
