"""Clipped sums in float32: squared norms of units' updates, clip factors, weighted sums.

Bounds here hold for any order of summation and with or without fused products: a float32 sum of k
terms errs by at most γ_k Σ|terms|, γ_k = ku/(1 - ku), u = 2⁻²⁴ (Higham 2002, §3.1 and §4.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fedsim.clients.models.gpu_kernels import sent
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Accumulator, Unit
from fedsim.tensors import Tensors, block_of_zeros

# Entries of a block: squares are summed in float32 within a block, and in float64 over blocks. The
# error bound grows with the block: this size costs 3e-5 of the clip norm. Shorter blocks would cost
# less of the clip norm, but more time.
_BLOCK = 1024
_NORM_ERROR = (_BLOCK / 2 + 8) * 2.0**-24
# Maximum number of units summed in float32 before the float64 sum; one chunk may have more.
_NARROW_UNITS = 128
# Maximum number of rows of one product on a CPU; a larger product is slower.
GROUP = 16
# Float32 squares below 1.2e-38 become 0; over 2^30 entries they sum to less than this square.
_UNDERFLOW = 1e-28


@contextmanager
def float32_products() -> Iterator[None]:
    """Multiply and convolve float32 numbers in float32, for any of torch's settings.

    The bounds here do not hold for TF32 or bfloat16. `set_float32_matmul_precision` allows these in
    products, and convolutions use TF32 by default.
    """
    mkldnn: Any = torch.backends.mkldnn  # missing from torch's stubs
    cudnn: Any = torch.backends.cudnn
    places = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    places += [mkldnn.matmul, mkldnn.conv, mkldnn.rnn]
    former = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, before in zip(places, former, strict=True):
            place.fp32_precision = before


def block_squares(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares of each row of (rows, entries), float64; see `norm_error`."""
    entries = values.shape[1]
    whole = entries - entries % _BLOCK
    blocks = values[:, :whole].reshape(len(values), whole // _BLOCK, _BLOCK)
    squares: torch.Tensor = torch.linalg.vector_norm(blocks, dim=2).double().square().sum(dim=1)
    if whole < entries:
        squares += torch.linalg.vector_norm(values[:, whole:], dim=1).double().square()
    return squares


def add_rows(total: torch.Tensor, factors: torch.Tensor, rows: torch.Tensor) -> None:
    """Add Σ factor × row to `total`, in its type.

    Args:
        total: tensor of any shape with as many entries as a row.
        factors: (rows,).
        rows: (rows, entries), or (rows, *shape).
    """
    flat, step = rows.flatten(1), len(rows) if rows.is_cuda else GROUP
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        total.view(-1).addmv_(flat[some].T, factors[some])


def norm_error(layout: Tensors) -> float:
    """Return the relative margin for float32 rounding of a norm and of a clipped share.

    See `Clip.batch_factors`. A block's sum of squares is too small by at most γ_1024 and its root
    by u, so a norm is too small by 513.1u. A factor rounded to float32 and its product with an
    entry are each too large by u. Units that are added alone, in float64, have the same margin.
    """
    return 0.0 if next(iter(layout.values())).dtype == torch.float64 else _NORM_ERROR


def clip_factors(
    clip: Clip, layout: Tensors, squares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return clip factors, (units, parameters), and the mask of the units to add.

    Args:
        clip: the bound.
        layout: the parameters; squares and factors use their type.
        squares: squared norms, (units, parameters) float64.

    Returns:
        (units, parameters) float64, and (units,) bool: false if a square is not finite in
        float32 or a factor underflows in it. Such a unit counts as zero.
    """
    error = norm_error(layout)
    squares_at_most = squares + _UNDERFLOW if error else squares
    factors = clip.batch_factors(list(layout), squares_at_most, norm_error=error)
    plain = squares.isfinite().all(dim=1) & (factors.amin(dim=1) > torch.finfo(torch.float32).tiny)
    return factors, plain


class PartialSum(Accumulator):
    """The running sum Σ w·clip(update) of one call: float32 over a few chunks, then float64."""

    def __init__(self, parameters: Tensors, clip: Clip) -> None:
        super().__init__(parameters, clip, norm_error=norm_error(parameters))
        self.parameters = parameters
        self._narrow: dict[str, torch.Tensor] = {}
        self._num_narrow = 0

    def narrow(self, num_units: int) -> Tensors:
        """Return the tensors to add `num_units` units into, in the type of the parameters."""
        if self._num_narrow + num_units > _NARROW_UNITS:
            self._fold()
        if not self._narrow:
            dtype = next(iter(self.parameters.values())).dtype
            self._narrow = block_of_zeros(self.parameters, dtype)
        self._num_narrow += num_units
        return self._narrow

    def _fold(self) -> None:
        for name, value in self._narrow.items():
            self._values[name].add_(value)
        self._narrow, self._num_narrow = {}, 0

    def total(self) -> WeightedSum:
        """Return the sum so far."""
        self._fold()
        return super().total()

    def count(
        self,
        units: Sequence[Unit],
        losses: torch.Tensor,
        *,
        num_unclipped: int,
        num_non_finite: int = 0,
        num_gradients: int | None = None,
    ) -> None:
        """Count units whose updates were added, or that add zero.

        Args:
            units: units that contribute their weights.
            losses: (units,); losses that are not finite count as zero.
            num_unclipped: number of units that the clip did not change.
            num_non_finite: number of units that count as zero.
            num_gradients: number of gradients computed; by default one per example.
        """
        self._weight += math.fsum(unit.weight for unit in units)
        self._units += len(units)
        if num_gradients is None:
            num_gradients = sum(len(unit.sizes) for unit in units)
        self._gradients += num_gradients
        self._unclipped += num_unclipped + num_non_finite
        self._non_finite += num_non_finite
        self._loss += float(losses.double().where(losses.isfinite(), 0.0).sum())


def shares(factors: torch.Tensor, units: Sequence[Unit], plain: torch.Tensor) -> torch.Tensor:
    """Return w·factor for units in the mask `plain` and 0 for the others, (units, layers)."""
    weights = torch.tensor([unit.weight for unit in units], dtype=torch.float64)
    return (factors * sent(weights, factors.device)[:, None]).where(plain[:, None], 0.0)
