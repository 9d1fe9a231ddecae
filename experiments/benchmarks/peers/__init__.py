"""Peer packages on the same work, in their own Python environment."""
