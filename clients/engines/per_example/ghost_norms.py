"""Ghost norms: squared norms of units' gradients as sums over pairs of positions.

The gradient of a linear layer is Σ_t l_t·r_tᵀ over a unit's positions t; its squared norm is
Σ_st (l_s·l_t)(r_s·r_t) (Goodfellow 2015 for one position, Li et al. 2022 for sequences).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedsim.clients.engines.per_example.gradient_terms import (
    Product,
    Rows,
    Segment,
    Term,
    by_unit,
    write_product,
)

# Pairs are symmetric: with four parts, each paired with itself and later parts, 5/8 of the work
# remains. Parts with fewer positions than the minimum have slow products.
_PARTS, _LEAST = 4, 16


def _parts(positions: int) -> list[tuple[int, int]]:
    step = max(_LEAST, -(-positions // _PARTS))
    return [(start, min(start + step, positions)) for start in range(0, positions, step)]


def ghost_is_cheaper(terms: Sequence[Term], positions: int) -> bool:
    """Return whether pairs of `positions` positions cost less arithmetic than a unit's gradient.

    False for a parameter that is used in a changed form: it has no ghost norm.
    """
    products = [term for term in terms if isinstance(term, Product)]
    if not products or any(product.chain is not None for product in products):
        return False
    first, second = products[0].left.shape[-1], products[0].right.shape[-1]
    pairs = sum((stop - start) * (positions - start) for start, stop in _parts(positions))
    return pairs * (first + second) <= positions * first * second


def ghost_squares(terms: Sequence[Term], segment: Segment) -> torch.Tensor:
    """Return the units' squared norms, (units,) float64; see `ghost_is_cheaper`.

    With products Σ_t l_t·r_tᵀ and look-ups that add v_s to row i_s, the square is
    Σ (l_t·l_t′)(r_t·r_t′) + 2 Σ l_t[i_s]·(r_t·v_s) + Σ [i_s = i_s′] v_s·v_s′.
    """
    products = [term for term in terms if isinstance(term, Product)]
    left = torch.cat([by_unit(term.left, segment) for term in products], dim=1)
    right = torch.cat([by_unit(term.right, segment) for term in products], dim=1)
    squares = left.new_zeros(len(left), dtype=torch.float64)
    lengths = torch.zeros_like(squares)
    for start, stop in _parts(left.shape[1]):
        of_left, of_right = (inner(s[:, start:stop], s[:, start:]) for s in (left, right))
        lengths += (_diagonal(of_left) * _diagonal(of_right)).sqrt().sum(dim=1)
        pairs = of_left.mul_(of_right)
        own = stop - start
        squares += _total(pairs[:, :, :own]) + 2 * _total(pairs[:, :, own:])
    lookups = [term for term in terms if isinstance(term, Rows)]
    if lookups:
        ids = torch.cat([by_unit(term.ids[..., None], segment) for term in lookups], dim=1)[..., 0]
        values = torch.cat([by_unit(term.values, segment) for term in lookups], dim=1)
        of_values = inner(values, values)
        lengths += _diagonal(of_values).sqrt().sum(dim=1)
        squares += 2 * cross_term(left, right, ids, values)
        squares += _total(of_values.mul_(ids[:, :, None] == ids[:, None, :]))
    # If pairs cancel, a small sum of large numbers is mostly rounding error. The added margin,
    # relative to their lengths, ensures that no norm is too small.
    rounding = 2.0 * torch.finfo(torch.promote_types(left.dtype, torch.float32)).eps
    return squares.clamp(min=0.0) + rounding * lengths.square()


def cross_term(
    left: torch.Tensor, right: torch.Tensor, ids: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Return the units' inner products of Σ l_t·r_tᵀ with the table of looked-up rows."""
    # l_t[i_s] for positions t and look-ups s: (units, positions, look-ups).
    scores = left.gather(2, ids[:, None, :].expand(-1, left.shape[1], -1))
    return _total(inner(right, values).mul_(scores))


def inner(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the units' inner products, (units, positions of one, positions of the other).

    The sums use float32 or wider.
    """
    dtype = torch.promote_types(torch.promote_types(one.dtype, other.dtype), torch.float32)
    products = one.new_empty(len(one), one.shape[1], other.shape[1], dtype=dtype)
    write_product(products, one, other.mT, add=False)
    return products


def _diagonal(pairs: torch.Tensor) -> torch.Tensor:
    return pairs.diagonal(dim1=1, dim2=2).double()


def _total(pairs: torch.Tensor) -> torch.Tensor:
    return pairs.sum(dim=(1, 2), dtype=torch.float64)
