"""Trackers: a run's metrics shown elsewhere, in TensorBoard, Weights & Biases or MLflow.

Start at `tracking.py`, the interface. Each of the others needs a package that is an extra.
A run reaches them by their names (entry points `fedsim.trackers`).
"""
