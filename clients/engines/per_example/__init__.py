"""Per-unit gradients of many units in one pass, from layer rules.

Start at `batched.py`, which the engines `materialised` and `ghost` share. A rule for a new layer
goes into `layer_rules.py`.
"""
