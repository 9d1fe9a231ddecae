"""Texts with several owners: kept examples, cost and protected people of contribution bounding.

Ganesh et al. 2025, "It's My Data Too: Private ML for Datasets with Multi-User Training Examples",
arXiv:2503.03622. Start with `co_owned.py`; `scenes.py` has the texts, `co_owned_runs.py` the runs.
"""
