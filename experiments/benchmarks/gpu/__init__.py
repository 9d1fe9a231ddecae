"""All checks and benchmarks on a GPU, in one command. Start at `__main__.py`."""
