"""User-level DP-FedAvg as a strategy for Flower apps with their own grid and ClientApp.

Start with `strategy.py`.
"""

from fedsim.strategies.flower.strategy import DPFedAvg

__all__ = ["DPFedAvg"]
