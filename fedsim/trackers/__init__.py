"""Trackers: send a run's metrics to TensorBoard, Weights & Biases or MLflow.

Start at `tracking.py`, the interface. Each other module needs an optional package. A run finds
trackers by name (entry points `fedsim.trackers`).
"""
