"""Squared norms of many units' updates in float32, what the clip may make of them, and their sum.

Bounds here hold for any order of summation and with or without fused products: a float32 sum of k
terms errs by at most γ_k Σ|terms|, γ_k = ku/(1 - ku), u = 2⁻²⁴ (Higham 2002, §3.1 and §4.2).
"""

from __future__ import annotations

import torch

from fedsim.clipping import Clip
from fedsim.tensors import Tensors

# Squares are summed in float32 over as many entries, and from there on in float64. Shorter blocks
# would make the clip's margin smaller, 3e-5, and take longer.
_BLOCK = 1024
_NORM_ERROR = (_BLOCK / 2 + 8) * 2.0**-24
# As many units' rows are summed in one float32 product, so many products in float32, and all of
# these in float64. Without the middle step the sum took a quarter longer.
GROUP, GROUPS = 16, 8
# Float32 squares under 1.2e-38 vanish; over 2^30 entries that is less than this square.
_UNDERFLOW = 1e-28
# Beyond, float32 is too coarse: squares of 1e15 are near its end, factors of 1e-30 near its
# denormal numbers. Such units are computed one by one in float64.
_LARGEST_SQUARE, _LEAST_FACTOR = 1e30, 1e-30


def block_squares(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares of each row of (rows, entries), float64; see `norm_error`."""
    entries = values.shape[1]
    if entries <= _BLOCK:
        small: torch.Tensor = torch.linalg.vector_norm(values, dim=1).double().square()
        return small
    whole = entries - entries % _BLOCK
    blocks = values[:, :whole].reshape(len(values), whole // _BLOCK, _BLOCK)
    squares: torch.Tensor = torch.linalg.vector_norm(blocks, dim=2).double().square().sum(dim=1)
    rest: torch.Tensor = torch.linalg.vector_norm(values[:, whole:], dim=1).double().square()
    return squares + rest


def sum_of_rows(factors: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return Σ factor × row in float64, (entries,); float32 rows 128 at a time in float32.

    There a term is rounded in its product and in 15 + 7 sums at most, so the result is within
    γ_24 Σ|factor|·‖row‖ of the exact sum: 24u·W·S for units of weight W in all that are clipped to
    S. See `fedsim.noise`.

    Args:
        factors: (rows,), in the type of the rows.
        rows: (rows, entries).
    """
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    if rows.is_cuda:  # all groups at once: there a loop would wait for its host
        whole = len(rows) - len(rows) % GROUP
        grouped = rows[:whole].view(-1, GROUP, rows.shape[1])
        sums = torch.bmm(factors[:whole].view(-1, 1, GROUP), grouped)
        total += sums.sum(dim=(0, 1), dtype=torch.float64)
        factors, rows = factors[whole:], rows[whole:]
    for start in range(0, len(rows), GROUP * GROUPS):
        end = min(start + GROUP * GROUPS, len(rows))
        some = factors[start : start + GROUP] @ rows[start : start + GROUP]
        for first in range(start + GROUP, end, GROUP):
            some += factors[first : first + GROUP] @ rows[first : first + GROUP]
        total += some
    return total


def norm_error(layout: Tensors) -> float:
    """Return how far a norm, and what float32 does to a unit's share, may fall short together.

    Relative, see `Clip.batch_factors`. A block's sum of squares is low by γ_1024 at most and its
    root by u, hence a norm by 513.1u; a factor that is rounded to float32, and its product with an
    entry, are u too large each. Units that are added alone, in float64, have the same margin: that
    others bring a chunk to where it is computed unit by unit must not move it.
    """
    return 0.0 if next(iter(layout.values())).dtype == torch.float64 else _NORM_ERROR


def clip_factors(
    clip: Clip, layout: Tensors, squares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factors that clip, (units, parameters), and the units that they will do for.

    Args:
        clip: the bound.
        layout: the parameters, in whose type the squares were taken and the factors will multiply.
        squares: squared norms, (units, parameters) float64.

    Returns:
        (units, parameters) float64, and (units,) bool: false where a number is not finite, or too
        large or too small for float32; that unit is to be looked at by itself, as `loop` would.
    """
    error = norm_error(layout)
    squares_at_most = squares + _UNDERFLOW if error else squares
    factors = clip.batch_factors(list(layout), squares_at_most, norm_error=error)
    plain = (squares.sum(dim=1) < _LARGEST_SQUARE) & (factors.amin(dim=1) > _LEAST_FACTOR)
    return factors, plain
