"""Squared gradient norms as sums over pairs of positions (ghost norms), tied tables included.

With them comes a bound on their float32 rounding, see `Pairs`: positions that cancel leave a small
sum of large numbers, of which nothing may be left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from clients.engines.per_example.contributions import Product, Rows, Segment, Use, by_unit

# Inner products are summed in float32 over at least as many entries, and then over these blocks.
_BLOCK = 64


class Pairs(NamedTuple):
    """What pairs of positions tell of the units' gradients Σ_t l_t·r_tᵀ, plus v_s on row i_s.

    Attributes:
        squares: squared norms, (units,) float64.
        error: at least how far those may be from the exact ones, (units,) float64.
        mass: at least Σ_t ‖l_t‖‖r_t‖ + Σ_s ‖v_s‖, (units,) float64.
        positions: how many t and s there are of which no factor is zero, (units,).
    """

    squares: torch.Tensor
    error: torch.Tensor
    mass: torch.Tensor
    positions: torch.Tensor


def pairs_are_possible(uses: Sequence[Use]) -> bool:
    """Return whether there is such a way: not for parameters that are not used as stored."""
    products = [use for use in uses if isinstance(use, Product)]
    covered = all(isinstance(use, Product | Rows) for use in uses)
    return covered and bool(products) and all(product.chain is None for product in products)


def pairs_are_cheaper(uses: Sequence[Use], positions: int) -> bool:
    """Return whether pairs of so many positions take less arithmetic than a unit's gradient."""
    if not pairs_are_possible(uses):
        return False
    product = next(use for use in uses if isinstance(use, Product))
    first, second = product.left.shape[-1], product.right.shape[-1]
    return positions * (first + second) <= first * second


def pair_squares(uses: Sequence[Use], segment: Segment) -> Pairs:
    """Return the units' squared norms and how far rounding may have moved them.

    With products Σ_t l_t·r_tᵀ and look-ups that add v_s to row i_s, the square is
    Σ (l_t·l_t′)(r_t·r_t′) + 2 Σ l_t[i_s]·(r_t·v_s) + Σ [i_s = i_s′] v_s·v_s′.

    The bound. An inner product of a and b, computed in blocks (`_inner`), is within c·u·‖a‖‖b‖ of
    the exact one, c the times that a term of it is rounded, plus what underflows. Sums over pairs
    are float64. So one pair of products errs by c_l·u·‖l‖‖l′‖·|r·r′| + c_r·u·‖r‖‖r′‖·|l·l′| and,
    where both are off, by the product of the two errors; each kind of pair is rounded once more
    when its two factors are multiplied. Norms come from the diagonals. What is left out, errors of
    these bounds themselves, is below a hundredth of them, and they are made larger by as much.
    """
    products = [use for use in uses if isinstance(use, Product)]
    left = _in_a_row([by_unit(use.left, segment) for use in products])
    right = _in_a_row([by_unit(use.right, segment) for use in products])
    u = torch.finfo(left.dtype).eps / 2.0
    of_left, of_right = _inner(left, left), _inner(right, right)
    left_norms, right_norms = _norms(of_left, left), _norms(of_right, right)
    mass = (left_norms * right_norms).sum(dim=1)
    positions = (_present(of_left) & _present(of_right)).sum(dim=1)
    off_left, off_right = _roundings(left) * u, _roundings(right) * u
    error = (off_left + u) * _between(of_right.abs(), left_norms)
    error += off_right * _between(of_left.abs(), right_norms) + off_left * off_right * mass.square()
    squares = _total(of_left.mul_(of_right))
    lookups = [use for use in uses if isinstance(use, Rows)]
    if lookups:
        ids = _in_a_row([by_unit(use.ids[..., None], segment) for use in lookups])[..., 0]
        values = _in_a_row([by_unit(use.values, segment) for use in lookups])
        of_values = _inner(values, values)
        norms = _norms(of_values, values)
        off = (_roundings(values) + 1) * u
        squares += 2 * cross_term(left, right, ids, values)
        error += 2 * off * _between(scores(left, ids).abs(), right_norms, norms)
        present = _present(of_values).sum(dim=1)
        same_row = ids[:, :, None] == ids[:, None, :]
        squares += _total(of_values.mul_(same_row))
        error += off * _between(same_row.to(values.dtype), norms)
        mass += norms.sum(dim=1)
        positions += present
    return Pairs(squares, 1.01 * error, 1.01 * mass, positions)


def cross_term(
    left: torch.Tensor, right: torch.Tensor, ids: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Return the units' inner products of Σ l_t·r_tᵀ with the table of looked-up rows."""
    return _total(_inner(right, values).mul_(scores(left, ids)))


def scores(left: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return l_t[i_s] for the units' positions t and look-ups s, (units, positions, look-ups)."""
    return left.gather(2, ids[:, None, :].expand(-1, left.shape[1], -1))


def _in_a_row(positions: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the units' positions of all uses; of one use without a copy."""
    return positions[0] if len(positions) == 1 else torch.cat(list(positions), dim=1)


def _inner(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the units' inner products, (units, positions of one, positions of the other)."""
    width = one.shape[-1]
    block = _block(width)
    total = torch.bmm(one[..., :block], other[..., :block].mT)
    for start in range(block, width, block):
        end = start + block
        total += torch.bmm(one[..., start:end], other[..., start:end].mT)
    return total


def _block(width: int) -> int:
    return max(_BLOCK, math.isqrt(width))


def _roundings(vectors: torch.Tensor) -> int:
    """Return how often a term of `_inner` is rounded at most: in its block, then block by block."""
    width = vectors.shape[-1]
    return min(width, _block(width)) + math.ceil(width / _block(width))


def _norms(inner: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return the norms of positions, (units, positions) float64, and a little for underflow.

    A term of an inner product that underflows is lost: the smallest normal number at most. That
    much on every entry's square, over u, makes the bounds above cover it.
    """
    limits = torch.finfo(vectors.dtype)
    lost = 2.0 * vectors.shape[-1] * limits.tiny / limits.eps
    return (inner.diagonal(dim1=1, dim2=2).double() + lost).sqrt()


def _present(inner: torch.Tensor) -> torch.Tensor:
    return inner.diagonal(dim1=1, dim2=2) > 0


def _between(
    pairs: torch.Tensor, norms: torch.Tensor, others: torch.Tensor | None = None
) -> torch.Tensor:
    """Return Σ norm·pair·norm, (units,)."""
    after = norms if others is None else others
    along = torch.bmm(pairs, after[:, :, None].to(pairs.dtype))[:, :, 0]
    return (norms * along.double()).sum(dim=1)


def _total(pairs: torch.Tensor) -> torch.Tensor:
    return pairs.sum(dim=(1, 2), dtype=torch.float64)
