"""Matrix products into a float32 buffer, from sides that may be bfloat16."""

from __future__ import annotations

import torch


def form(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, add: bool) -> None:
    """Write left @ right into `out`, or add it to what is there.

    With mixed precision one side is bfloat16 and the other may be what was rounded to it. A GPU
    then multiplies bfloat16 numbers and sums and writes float32; elsewhere, where no such product
    exists, both sides are widened. Either way `out` keeps its type, and norms are taken of it.

    Args:
        out: (units, rows, columns), or one unit's (rows, columns), which takes less calling.
        left: (units, rows, positions), or (rows, positions).
        right: (units, positions, columns), or (positions, columns).
        add: whether `out` has something in it that counts.
    """
    multiply, add_product = (torch.mm, out.addmm_) if out.dim() == 2 else (torch.bmm, out.baddbmm_)
    if left.dtype == right.dtype == out.dtype:
        if add:
            add_product(left, right)
        else:
            multiply(left, right, out=out)
    elif out.device.type == "cuda":
        low = min(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)
        left, right = left.to(low), right.to(low)
        if add:
            out += multiply(left, right, out.dtype)
        else:
            multiply(left, right, out.dtype, out=out)
    else:
        form(out, left.to(out.dtype), right.to(out.dtype), add=add)
