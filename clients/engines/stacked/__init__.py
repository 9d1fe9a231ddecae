"""Local SGD of many users at once, over a stack of their parameters.

Start at `local_vmap.py`.
"""
