"""What a round costs besides its gradients. Start at `benchmark.py`."""
