"""Ghost norms: squared gradient norms as sums over pairs of positions, tied tables included.

Each comes with a bound on its float32 rounding (`GhostNorms`): positions that cancel leave a small
sum of large numbers, of which rounding may be all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from fedsim.clients.engines.per_example.gradient_terms import (
    Product,
    Rows,
    Segment,
    StackedProduct,
    Term,
    by_unit,
)

# Inner products are summed in float32 over at least as many entries, and then over these blocks.
_BLOCK = 64


class GhostNorms(NamedTuple):
    """Norms of the units' gradients Σ_t l_t·r_tᵀ, plus v_s on row i_s, with error bounds.

    Attributes:
        squares: squared norms, (units,) float64.
        error: upper bound of their distance from the exact ones, (units,) float64.
        mass: upper bound of Σ_t ‖l_t‖‖r_t‖ + Σ_s ‖v_s‖, (units,) float64.
        positions: the number of t and s of which no factor is zero, (units,).
    """

    squares: torch.Tensor
    error: torch.Tensor
    mass: torch.Tensor
    positions: torch.Tensor


def ghost_is_possible(terms: Sequence[Term]) -> bool:
    """Return whether ghost norms exist: not for parameters that are not used as stored."""
    products = [term for term in terms if isinstance(term, Product)]
    covered = all(isinstance(term, Product | Rows) for term in terms)
    return covered and bool(products) and all(product.chain is None for product in products)


def ghost_is_cheaper(terms: Sequence[Term], positions: int) -> bool:
    """Return whether pairs of so many positions take less arithmetic than a unit's gradient."""
    if not ghost_is_possible(terms):
        return False
    product = next(term for term in terms if isinstance(term, Product))
    first, second = product.left.shape[-1], product.right.shape[-1]
    return positions * (first + second) <= first * second


def ghost_norms(terms: Sequence[Term], segment: Segment) -> GhostNorms:
    """Return the units' squared norms, and how far rounding may have moved them.

    With products Σ_t l_t·r_tᵀ and look-ups that add v_s to row i_s, the square is
    Σ (l_t·l_t′)(r_t·r_t′) + 2 Σ l_t[i_s]·(r_t·v_s) + Σ [i_s = i_s′] v_s·v_s′.

    The bound. An inner product of a and b, computed in blocks (`_inner`), is within c·u·‖a‖‖b‖ of
    the exact one, c the times that a term of it is rounded, plus what underflows. Sums over pairs
    are float64. So one pair of products errs by c_l·u·‖l‖‖l′‖·|r·r′| + c_r·u·‖r‖‖r′‖·|l·l′| and,
    where both are off, by the product of the two errors; each kind of pair is rounded once more
    when its two factors are multiplied. Norms come from the diagonals. What is left out, errors of
    these bounds themselves, is below a hundredth of them, and they are made larger by as much.
    """
    products = [term for term in terms if isinstance(term, Product)]
    # Gram matrices, (units, positions, positions): their elementwise product, summed, is the
    # square.
    left = _in_a_row([by_unit(term.left, segment) for term in products])
    right = _in_a_row([by_unit(term.right, segment) for term in products])
    u = torch.finfo(left.dtype).eps / 2.0
    of_left, of_right = _inner(left, left), _inner(right, right)
    stacked = [term for term in products if isinstance(term, StackedProduct)]
    if stacked:  # positions add up only where they chose the same matrix
        choices = _in_a_row([by_unit(term.choices, segment).flatten(1) for term in stacked])
        same = choices[:, :, None] == choices[:, None, :]
        of_left, of_right = of_left.mul_(same), of_right.mul_(same)
    left_norms, right_norms = _norms(of_left, left), _norms(of_right, right)
    mass = (left_norms * right_norms).sum(dim=1)
    positions = (present(left) & present(right)).sum(dim=1)
    off_left, off_right = _roundings(left) * u, _roundings(right) * u
    error = (off_left + u) * _between(of_right.abs(), left_norms)
    error += off_right * _between(of_left.abs(), right_norms) + off_left * off_right * mass.square()
    squares = _total(of_left.mul_(of_right))
    lookups = [term for term in terms if isinstance(term, Rows)]
    if lookups:
        ids = _in_a_row([by_unit(term.ids[..., None], segment) for term in lookups])[..., 0]
        values = _in_a_row([by_unit(term.values, segment) for term in lookups])
        of_values = _inner(values, values)
        norms = _norms(of_values, values)
        off = (_roundings(values) + 1) * u
        squares += 2 * cross_term(left, right, ids, values)
        error += 2 * off * _between(scores(left, ids).abs(), right_norms, norms)
        # Look-ups add up only where they are of the same row.
        same_row = ids[:, :, None] == ids[:, None, :]
        squares += _total(of_values.mul_(same_row))
        error += off * _between(same_row.to(values.dtype), norms)
        mass += norms.sum(dim=1)
        positions += present(values).sum(dim=1)
    return GhostNorms(squares, 1.01 * error, 1.01 * mass, positions)


def cross_term(
    left: torch.Tensor, right: torch.Tensor, ids: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Return the units' inner products of Σ l_t·r_tᵀ with the table of looked-up rows."""
    return _total(_inner(right, values).mul_(scores(left, ids)))


def scores(left: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return l_t[i_s] for the units' positions t and look-ups s, (units, positions, look-ups)."""
    return left.gather(2, ids[:, None, :].expand(-1, left.shape[1], -1))


def _in_a_row(positions: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the units' positions of all terms; of a single term without a copy."""
    return positions[0] if len(positions) == 1 else torch.cat(list(positions), dim=1)


def _inner(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the units' inner products, (units, positions of one, positions of the other)."""
    width = one.shape[-1]
    # In blocks of about √width entries, so that the error bound grows with the root of the width.
    block = _block(width)
    total = torch.bmm(one[..., :block], other[..., :block].mT)
    for start in range(block, width, block):
        end = start + block
        total += torch.bmm(one[..., start:end], other[..., start:end].mT)
    return total


def _block(width: int) -> int:
    return max(_BLOCK, math.isqrt(width))


def _roundings(vectors: torch.Tensor) -> int:
    """Return the most roundings of a product in `_inner`: in its block, then block by block."""
    width = vectors.shape[-1]
    return min(width, _block(width)) + math.ceil(width / _block(width))


def _norms(inner: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return the norms of positions, (units, positions) float64, and a little for underflow.

    A term of an inner product that underflows is lost: the smallest normal number at most. That
    much on every entry's square, over u, makes the bounds above cover it. Zeros lose nothing: how
    many positions of padding there are must move nothing.
    """
    limits = torch.finfo(vectors.dtype)
    lost = 2.0 * vectors.shape[-1] * limits.tiny / limits.eps
    norms = (inner.diagonal(dim1=1, dim2=2).double() + lost).sqrt()
    return torch.where(present(vectors), norms, 0.0)


def present(vectors: torch.Tensor) -> torch.Tensor:
    """Return which vectors are not zero, (…,) bool; squares may all underflow in others too."""
    return vectors.ne(0).any(dim=-1)


def _between(
    pairs: torch.Tensor, norms: torch.Tensor, others: torch.Tensor | None = None
) -> torch.Tensor:
    """Return Σ norm·pair·norm, (units,)."""
    after = norms if others is None else others
    along = torch.bmm(pairs, after[:, :, None].to(pairs.dtype))[:, :, 0]
    return (norms * along.double()).sum(dim=1)


def _total(pairs: torch.Tensor) -> torch.Tensor:
    return pairs.sum(dim=(1, 2), dtype=torch.float64)
