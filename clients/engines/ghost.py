"""Norms without per-unit gradients, and the clipped sum from the same pass by book-keeping.

For models whose per-unit gradients do not fit. The squared norm of a unit's Σ_t l_t·r_tᵀ is
Σ_st (l_s·l_t)(r_s·r_t), a sum over pairs of positions instead of over entries (ghost norms,
Goodfellow 2015 for one position, Li et al. 2022 for sequences). Where a unit has so many
positions that its gradient is cheaper, that is formed, one unit at a time. With the factors
known, the sum is one product of what was captured: no second backward pass (book-keeping, Bu et
al. 2023).
"""

from __future__ import annotations

import torch

from clients.engines.batched import BatchedEngine
from clients.engines.capture import OpenModel
from clients.engines.materialised import Buffers
from clients.engines.pairs import pair_squares, pairs_are_cheaper
from clients.engines.squares import block_squares
from clients.engines.uses import Product, Rows, Segment, Segments, Use, merged
from fedsim.tensors import Tensors


class Ghost:
    """Keeps the uses of one chunk; see `clients.engines.gradients.Gradients`."""

    # Relative: sums over pairs that do not cancel were seen up to 1e-6 low.
    norm_error = 5e-6

    def __init__(self, scratch: Buffers, layout: Tensors, num_units: int) -> None:
        self._scratch = scratch
        self._layout = layout
        self._num_units = num_units
        self._passes: list[Segments] = []
        self._uses: dict[str, list[tuple[Use, Segments]]] = {name: [] for name in layout}

    def start_pass(self, segments: Segments) -> None:
        """Say to which units the sequences of the uses that follow belong."""
        self._passes.append(segments)

    def __call__(self, name: str, use: Use) -> None:
        """Take one use of parameter `name`.

        Norms and the sum are different arithmetic on the same numbers: both in the parameters'
        type, so that they agree to its rounding.
        """
        self._uses[name].append((use.to(self._layout[name].dtype), self._passes[-1]))

    def squares(self) -> torch.Tensor:
        """Return squared norms, (units, parameters) float64."""
        return torch.stack([self._square(name) for name in self._layout], dim=1)

    def _square(self, name: str) -> torch.Tensor:
        uses, like = self._uses[name], self._layout[name]
        if like.ndim == 1:  # a vector per unit is nothing
            vectors = like.new_zeros(self._num_units, len(like))
            for use, segments in uses:
                use.into(vectors, segments, add=True)
            return block_squares(vectors)
        lookups = [(use, of) for use, of in uses if isinstance(use, Rows)]
        if lookups and len(lookups) == len(uses):
            return merged(lookups).squares(self._num_units)
        squares = torch.zeros(self._num_units, dtype=torch.float64, device=like.device)
        if len(self._passes) == 1:
            for segment in self._passes[0]:
                squares[segment.units] = self._of_segment(name, segment)
        else:
            for unit in range(self._num_units):
                squares[unit] = self._of_unit(name, unit)
        return squares

    def _of_segment(self, name: str, segment: Segment) -> torch.Tensor:
        """Return the squares of neighbouring units that have all their sequences in one pass."""
        uses = [use for use, _ in self._uses[name]]
        squares = torch.zeros(segment.num_units, dtype=torch.float64, device=self._device(name))
        missing = torch.ones(segment.num_units, dtype=torch.bool)
        if pairs_are_cheaper(uses, segment):
            squares, missing = pair_squares(uses, segment)
        for index in missing.nonzero()[:, 0].tolist():
            rows = segment.rows_of(index)
            squares[index] = self._direct(name, [_joined(use, rows) for use in uses])
        return squares

    def _of_unit(self, name: str, unit: int) -> torch.Tensor:
        """Return the square of one unit, wherever its sequences are."""
        parts = []
        for use, segments in self._uses[name]:
            start, count = sum(segments.counts[:unit]), segments.counts[unit]
            if count:
                parts.append(_joined(use, slice(start, start + count)))
        alone = Segment(slice(0, 1), slice(0, 1))
        if pairs_are_cheaper(parts, alone):
            squares, inexact = pair_squares(parts, alone)
            if not bool(inexact[0]):
                return squares[0]
        return self._direct(name, parts)

    def _direct(self, name: str, parts: list[Use]) -> torch.Tensor:
        """Return the squared norm of one unit's gradient, formed in the one scratch buffer."""
        like = self._layout[name]
        gradient = self._scratch.take(str(tuple(like.shape)), 1, like)
        gradient.zero_()
        one = Segments([1], whole=True)
        products = [part for part in parts if isinstance(part, Product)]
        for product in products:
            product.into(gradient, one, add=True)
        _chain(products, gradient[0])
        for part in parts:
            if not isinstance(part, Product):
                part.into(gradient, one, add=True)
        return block_squares(gradient.flatten(1))[0]

    def _device(self, name: str) -> torch.device:
        return self._layout[name].device

    def drop(self, units: torch.Tensor) -> None:
        """Put zeros for these units: their NaN times a factor of 0 would be NaN."""
        self._uses = {
            name: [(_zeroed(use, segments, units), segments) for use, segments in uses]
            for name, uses in self._uses.items()
        }

    def weighted_sum(self, factors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return Σ over units of factor × gradient; `factors` is (units, parameters) float64."""
        total: dict[str, torch.Tensor] = {}
        for column, (name, like) in enumerate(self._layout.items()):
            of_units = factors[:, column].to(like.dtype)
            # Products first: what they are of may be made of the parameter.
            uses = sorted(self._uses[name], key=lambda used: not isinstance(used[0], Product))
            products = [use for use, _ in uses if isinstance(use, Product)]
            for place, (use, segments) in enumerate(uses):
                part = use.weighted_sum(of_units[segments.unit_of_row(factors.device)])
                total[name] = total[name].add_(part) if name in total else part
                if place + 1 == len(products):
                    _chain(products, total[name])
        return total


def _chain(products: list[Product], gradient: torch.Tensor) -> None:
    """Make of the products' sum the gradient of the parameter that is stored."""
    if products and products[0].chain is not None:
        products[0].chain(gradient)


def _joined(use: Use, rows: slice) -> Use:
    """Return the use by some sequences as if they were one long one."""
    return use.map(lambda value: value[rows].flatten(0, 1)[None])


def _zeroed(use: Use, segments: Segments, units: torch.Tensor) -> Use:
    gone = torch.isin(segments.unit_of_row(units.device), units)
    return use.map(lambda value: value.masked_fill(gone.view(-1, *[1] * (value.ndim - 1)), 0))


class _Method:
    """Ghost norms with one scratch buffer."""

    keeps_uses = True

    def __init__(self) -> None:
        self._scratch = Buffers()

    def __call__(self, layout: Tensors, num_units: int, room: int) -> Ghost:
        """Begin a chunk; it holds all its uses, and its passes together are kept small."""
        return Ghost(self._scratch, layout, num_units)

    def bytes_per_unit(self, layout: Tensors) -> int:
        """Return the bytes of one unit's vectors; matrices are never held."""
        return sum(value.nbytes for value in layout.values() if value.ndim == 1)

    def clear(self) -> None:
        """Give the scratch buffer back."""
        self._scratch.clear()


def ghost(model: OpenModel, num_bytes: int | None = None) -> BatchedEngine:
    """Return the engine that forms no unit's gradient; see `BatchedEngine`."""
    return BatchedEngine(model, _Method(), num_bytes)
