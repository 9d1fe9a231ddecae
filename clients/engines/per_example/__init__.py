"""Per-unit gradients of many units in one pass, from layer rules.

Start at `batched.py`, which the engines `materialised` and `ghost` share. A rule for a new layer
goes into `layer_rules.py`.

A chunk is the units whose gradients are in memory together. It goes through the network in passes
(`passes.py`); a pass has rows of one length, each with one sequence or several short ones
(`packing.py`), whose units its segments name. A rule makes a term of each layer and pass: what a
unit's gradient is computed from, such as the two factors of a product (`gradient_terms.py`).
"""
