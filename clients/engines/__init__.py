"""Gradient engines: units and a clip in, one weighted sum out.

choose.py       which engine computes, by name or by what fits model and memory
loop.py         the reference: one unit after the other, as the algorithms are printed
vmap.py         many units by `torch.func`
per_example/    `materialised` and `ghost`: many units in one pass, by layer rules
stacked/        local training of many users at once

`squares.py` and `partial_sum.py` hold what all share: bounds on float32 norms, and the sum.
"""
