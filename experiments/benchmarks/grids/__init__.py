"""Times of a round besides its gradients. Start at `benchmark.py`."""
