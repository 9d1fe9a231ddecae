"""Texts that belong to several people: what bounding keeps, what it costs, who is protected.

Ganesh et al. 2025, "It's My Data Too: Private ML for Datasets with Multi-User Training Examples",
arXiv:2503.03622. Start with `co_owned.py`; `scenes.py` has the texts, `co_owned_runs.py` the runs.
"""
