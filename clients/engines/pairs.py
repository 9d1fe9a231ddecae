"""Squared gradient norms as sums over pairs of positions (ghost norms), tied tables included."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from clients.engines.uses import Product, Rows, Segment, Use, by_unit

# Where positions cancel, the rounding of pairs outweighs their sum: under this share of what
# the positions' own squares add up to, a float32 result is not taken.
_CANCELLED = 0.1


def pairs_are_possible(uses: Sequence[Use]) -> bool:
    """Return whether there is such a way: not for parameters that are not used as stored."""
    products = [use for use in uses if isinstance(use, Product)]
    covered = all(isinstance(use, Product | Rows) for use in uses)
    return covered and bool(products) and all(product.chain is None for product in products)


def pairs_are_cheaper(uses: Sequence[Use], segment: Segment) -> bool:
    """Return whether pairs of a unit's positions take less arithmetic than its gradient."""
    if not pairs_are_possible(uses):
        return False
    products = [use for use in uses if isinstance(use, Product)]
    one = segment.rows_of(0)
    positions = sum((one.stop - one.start) * use.left.shape[1] for use in products)
    first, second = products[0].left.shape[-1], products[0].right.shape[-1]
    return bool(positions * (first + second) <= first * second)


def pair_squares(uses: Sequence[Use], segment: Segment) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the units' squared norms, (units,) float64, and which of them are too inexact.

    With products Σ_t l_t·r_tᵀ and look-ups that add v_s to row i_s, the square is
    Σ (l_t·l_t′)(r_t·r_t′) + 2 Σ l_t[i_s]·(r_t·v_s) + Σ [i_s = i_s′] v_s·v_s′.
    """
    products = [use for use in uses if isinstance(use, Product)]
    left = torch.cat([by_unit(use.left, segment) for use in products], dim=1)
    right = torch.cat([by_unit(use.right, segment) for use in products], dim=1)
    pairs = torch.bmm(left, left.mT).mul_(torch.bmm(right, right.mT))
    squares, own = _total(pairs), _diagonal(pairs)
    lookups = [use for use in uses if isinstance(use, Rows)]
    if lookups:
        ids = torch.cat([by_unit(use.ids[..., None], segment) for use in lookups], dim=1)[..., 0]
        values = torch.cat([by_unit(use.values, segment) for use in lookups], dim=1)
        squares += 2 * cross_term(left, right, ids, values)
        same_row = ids[:, :, None] == ids[:, None, :]
        pairs = torch.bmm(values, values.mT).mul_(same_row)
        squares += _total(pairs)
        own += _diagonal(pairs)
    if left.dtype == torch.float64:
        return squares, torch.zeros_like(squares, dtype=torch.bool)
    return squares, squares < _CANCELLED * own


def cross_term(
    left: torch.Tensor, right: torch.Tensor, ids: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Return the units' inner products of Σ l_t·r_tᵀ with the table of looked-up rows."""
    scored = left.gather(2, ids[:, None, :].expand(-1, left.shape[1], -1))
    return _total(torch.bmm(right, values.mT).mul_(scored))


def _total(pairs: torch.Tensor) -> torch.Tensor:
    return pairs.sum(dim=(1, 2), dtype=torch.float64)


def _diagonal(pairs: torch.Tensor) -> torch.Tensor:
    return pairs.diagonal(dim1=1, dim2=2).sum(dim=1, dtype=torch.float64)
