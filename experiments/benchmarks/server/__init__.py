"""The server's time and memory in a round. Start at `bench_server.py`."""
