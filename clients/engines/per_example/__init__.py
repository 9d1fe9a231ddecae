"""Per-unit gradients of many units in one pass, from layer rules.

Start at `batched.py`, which the engines `materialised` and `ghost` share. A rule for a new layer
goes into `layer_rules.py`.

A chunk is a group of units whose gradients are in memory together. It goes through the network in
passes (`passes.py`). A pass has rows of one length; each row has one sequence or several short ones
(`packing.py`), and the pass's segments name their units. For each layer and pass, a rule makes a
term, for example the two factors of a product (`gradient_terms.py`). Terms give the gradients.
"""
