"""Gradient engines: units and a clip in, one weighted sum out.

loop.py         the reference: one unit after the other, as in the papers' algorithms
vmap.py         many units by `torch.func`
stacked/        local training of many users, each at parameters of its own, by layer rules
per_example/    `materialised` and `ghost`: many units in one pass, by layer rules

`clipped_sums.py` holds what the fast engines share: float32 norms with their error bound, clip
factors, and the sum. `cross_entropy.py` holds losses and their gradients. `pass_shape.py` says
which shapes passes may have. `clients/engine_choice.py` chooses among the engines.
"""
