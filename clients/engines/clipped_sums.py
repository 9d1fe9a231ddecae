"""Clipped sums in float32: squared norms of units' updates, clip factors, weighted sums.

Bounds here hold for any order of summation and with or without fused products: a float32 sum of k
terms errs by at most γ_k Σ|terms|, γ_k = ku/(1 - ku), u = 2⁻²⁴ (Higham 2002, §3.1 and §4.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from fedsim.clients.models.gpu_kernels import sent
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Accumulator, Unit
from fedsim.tensors import Tensors

# Squares are summed in float32 within blocks of so many entries, and over blocks in float64. The
# error bound grows with the block: this one costs a margin of 3e-5 of the clip norm; shorter blocks
# would cost less of it and more time.
_BLOCK = 1024
_NORM_ERROR = (_BLOCK / 2 + 8) * 2.0**-24
# On a CPU: GROUP rows in one float32 product, GROUPS products in float32, the rest in float64. Each
# product of 16 rows straight into float64 took a quarter longer.
GROUP, GROUPS = 16, 8
# Float32 squares under 1.2e-38 vanish; over 2^30 entries that is less than this square.
_UNDERFLOW = 1e-28
# Outside, float32 is too coarse: squares of 1e15 are near its largest number, factors of 1e-30 near
# its denormal ones. Such units are computed one by one in float64.
_LARGEST_SQUARE, _LEAST_FACTOR = 1e30, 1e-30


@contextmanager
def float32_products() -> Iterator[None]:
    """Multiply and convolve float32 in float32, whatever torch was told to use in its place.

    The bounds here are not those of TF32 or bfloat16, which `set_float32_matmul_precision` allows;
    convolutions use TF32 unless they are told not to.
    """
    mkldnn: Any = torch.backends.mkldnn  # which has what its type does not say
    cudnn: Any = torch.backends.cudnn
    places: list[Any] = [torch.backends.cuda.matmul, mkldnn.matmul]
    places += [part for library in (cudnn, mkldnn) for part in (library.conv, library.rnn)]
    former: list[tuple[Any, ...]] = [
        (place, "fp32_precision", "ieee", place.fp32_precision) for place in places
    ]
    with suppress(RuntimeError):  # where conv and rnn differ, this older name has no value
        former.append((cudnn, "allow_tf32", False, cudnn.allow_tf32))
    try:
        for place, name, exact, _ in reversed(former):  # the newer names have the last word
            setattr(place, name, exact)
        yield
    finally:
        for place, name, _, before in reversed(former):
            setattr(place, name, before)


def block_squares(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares of each row of (rows, entries), float64; see `norm_error`."""
    entries = values.shape[1]
    if entries <= _BLOCK:
        small: torch.Tensor = torch.linalg.vector_norm(values, dim=1).double().square()
        return small
    whole = entries - entries % _BLOCK
    blocks = values[:, :whole].reshape(len(values), whole // _BLOCK, _BLOCK)
    squares: torch.Tensor = torch.linalg.vector_norm(blocks, dim=2).double().square().sum(dim=1)
    if whole == entries:
        return squares
    rest: torch.Tensor = torch.linalg.vector_norm(values[:, whole:], dim=1).double().square()
    return squares + rest


def sum_of_rows(factors: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return Σ factor × row, (entries,): 128 rows at a time in float32, then in float64.

    Args:
        factors: (rows,), in the type of the rows.
        rows: (rows, entries).
    """
    if rows.is_cuda:
        return factors @ rows
    most = GROUP * GROUPS
    if 0 < len(rows) <= most:
        return _sum_by_groups(factors, rows)
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    for start in range(0, len(rows), most):
        total += _sum_by_groups(factors[start : start + most], rows[start : start + most])
    return total


def _sum_by_groups(factors: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return Σ factor × row in the rows' type, from sums of `GROUP` rows; there is a row."""
    total = factors[:GROUP] @ rows[:GROUP]
    for start in range(GROUP, len(rows), GROUP):
        total += factors[start : start + GROUP] @ rows[start : start + GROUP]
    return total


def norm_error(layout: Tensors) -> float:
    """Return the relative margin for float32 rounding of a norm and of a clipped share.

    Relative, see `Clip.batch_factors`. A block's sum of squares is low by γ_1024 at most and its
    root by u, hence a norm by 513.1u; a factor that is rounded to float32, and its product with an
    entry, are u too large each. Units that are added alone, in float64, have the same margin: a
    unit's share must not depend on whether its chunk was computed unit by unit.
    """
    return 0.0 if next(iter(layout.values())).dtype == torch.float64 else _NORM_ERROR


def clip_factors(
    clip: Clip, layout: Tensors, squares: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return clip factors, (units, parameters), and which units float32 is enough for.

    Args:
        clip: the bound.
        layout: the parameters, in whose type the squares were taken and the factors will multiply.
        squares: squared norms, (units, parameters) float64.

    Returns:
        (units, parameters) float64, and (units,) bool: false where a number is not finite, or too
        large or too small for float32; that unit is computed by itself, as `loop` would.
    """
    error = norm_error(layout)
    squares_at_most = squares + _UNDERFLOW if error else squares
    factors = clip.batch_factors(list(layout), squares_at_most, norm_error=error)
    plain = (squares.sum(dim=1) < _LARGEST_SQUARE) & (factors.amin(dim=1) > _LEAST_FACTOR)
    return factors, plain


class PartialSum(Accumulator):
    """The running sum Σ w·clip(update) of a call, in float64 across chunks and stacks."""

    def __init__(self, parameters: Tensors, clip: Clip) -> None:
        super().__init__(parameters, clip, norm_error=norm_error(parameters))
        self.parameters = parameters
        self._alone: Accumulator | None = None

    @property
    def alone(self) -> Accumulator:
        """The accumulator for units that are added one by one, as `loop` does; made when used."""
        if self._alone is None:
            self._alone = Accumulator(self.parameters, self.clip, norm_error=self._norm_error)
        return self._alone

    def within(self, factors: torch.Tensor, plain: torch.Tensor) -> int:
        """Return how many of the plain units the clip left as they were.

        Args:
            factors: (units, layers), of `Clip.batch_factors`.
            plain: (units,) bool, those that are added together.
        """
        return int((plain & (factors == self.clip.unclipped_factor).all(dim=1)).sum())

    def add_sums(self, sums: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Add Σ w·clip(update) of some units, for every parameter, of its shape or flat."""
        for name, value in sums:
            self._values[name].add_(value.view(self._values[name].shape))

    def count(
        self,
        units: Sequence[Unit],
        losses: torch.Tensor,
        *,
        num_gradients: int,
        num_unclipped: int,
    ) -> None:
        """Count units whose updates were added, or that have none.

        Args:
            units: their weights count.
            losses: (units,); what is not finite counts as zero.
            num_gradients: of examples, that the units took.
            num_unclipped: of the units, that the clip left as they were.
        """
        self._weight += math.fsum(unit.weight for unit in units)
        self._units += len(units)
        self._gradients += num_gradients
        self._unclipped += num_unclipped
        self._loss += float(losses.double().where(losses.isfinite(), 0.0).sum())

    def total(self) -> WeightedSum:
        """Return the sum so far."""
        together = super().total()
        return together if self._alone is None else together + self._alone.total()


def shares(factors: torch.Tensor, units: Sequence[Unit], plain: torch.Tensor) -> torch.Tensor:
    """Return w·factor for the plain units and 0 for the others, (units, layers)."""
    weights = torch.tensor([unit.weight for unit in units], dtype=torch.float64)
    return (factors * sent(weights, factors.device)[:, None]).where(plain[:, None], 0.0)
