"""Squared norms of many units' updates in float32, and what the clip may make of them."""

from __future__ import annotations

import torch

from fedsim.clipping import Clip
from fedsim.tensors import Tensors

# Squares are summed in float32 over as many entries, and from there on in float64.
_BLOCK = 1024
# Float32 squares under 1.2e-38 vanish; over 2^30 entries that is less than this square.
_UNDERFLOW = 1e-28
# Beyond, float32 is too coarse: squares of 1e15 are near its end, factors of 1e-30 near its
# denormal numbers. Such units are computed one by one in float64.
_LARGEST_SQUARE, _LEAST_FACTOR = 1e30, 1e-30


def block_squares(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares of each row of (rows, entries), float64."""
    entries = values.shape[1]
    if entries <= _BLOCK:
        small: torch.Tensor = torch.linalg.vector_norm(values, dim=1).double().square()
        return small
    whole = entries - entries % _BLOCK
    blocks = values[:, :whole].reshape(len(values), whole // _BLOCK, _BLOCK)
    squares: torch.Tensor = torch.linalg.vector_norm(blocks, dim=2).double().square().sum(dim=1)
    rest: torch.Tensor = torch.linalg.vector_norm(values[:, whole:], dim=1).double().square()
    return squares + rest


def clip_factors(
    clip: Clip, layout: Tensors, squares: torch.Tensor, norm_error: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factors that clip, (units, parameters), and the units that they will do for.

    Args:
        clip: the bound.
        layout: the parameters, in whose type the squares were taken and the factors will multiply.
        squares: squared norms, (units, parameters) float64.
        norm_error: relative, how far a float32 norm and factor may fall short together.

    Returns:
        (units, parameters) float64, and (units,) bool: false where a number is not finite, or too
        large or too small for float32; that unit is to be looked at by itself, as `loop` would.
    """
    exact = next(iter(layout.values())).dtype == torch.float64
    factors = clip.batch_factors(
        list(layout),
        squares if exact else squares + _UNDERFLOW,
        norm_error=0.0 if exact else norm_error,
    )
    plain = (squares.sum(dim=1) < _LARGEST_SQUARE) & (factors.amin(dim=1) > _LEAST_FACTOR)
    return factors, plain
