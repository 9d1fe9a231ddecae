"""The server's time and memory in a round. Start at `benchmark.py`."""
