"""User-level DP-FedAvg as a strategy for Flower apps over their own grid and ClientApp.

Start at `strategy.py`.
"""

from fedsim.strategies.flower.strategy import DPFedAvg

__all__ = ["DPFedAvg"]
