"""Experiments: configs and studies, thinner than the core."""
