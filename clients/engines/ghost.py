"""Norms without per-unit gradients, and the clipped sum from the same pass by book-keeping.

For models whose per-unit gradients do not fit. The squared norm of a unit's Σ_t l_t·r_tᵀ is
Σ_st (l_s·l_t)(r_s·r_t), a sum over pairs of positions instead of over entries (ghost norms,
Goodfellow 2015 for one position, Li et al. 2022 for sequences). Where a unit has so many
positions that its gradient is cheaper, that is formed, one unit at a time. With the factors
known, the sum is one product of what was captured: no second backward pass (book-keeping, Bu et
al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from clients.engines.batched import BatchedEngine
from clients.engines.capture import OpenModel
from clients.engines.materialised import Buffers
from clients.engines.pairs import pair_squares, pairs_are_cheaper
from clients.engines.squares import block_squares, sum_of_rows
from clients.engines.uses import MergedRows, Product, Rows, Segment, Segments, Use, merged
from fedsim.tensors import Tensors

# Of a unit's square: where pairs may be off by more, its gradient is formed. The clip allows for
# what they may be off, so that this costs a unit a two-thousandth of its norm at most.
_INEXACT = 1e-3
# More than the norm of any vector of float32 numbers whose squares all underflow.
_LOST = 1e-16
# Of the bound: a unit's terms before they cancel, from which it is added alone. Positions whose
# gradients have nothing to do with each other come to the root of their number.
_MOST_MASS = 64.0


class Ghost:
    """Keeps the uses of one chunk; see `clients.engines.gradients.Gradients`.

    Vectors and tables of which rows are looked up are added as the numbers whose norms were taken.
    What products add is never formed, and rounded otherwise than whatever the norm was taken of. So
    `squares` are not those of the gradient but of the most that the unit, alone in the chunk, adds.

    Proof. Let G be the gradient that the captured numbers have in exact arithmetic, u half of eps,
    and m = Σ ‖l_t‖‖r_t‖ + Σ ‖v_s‖ over the unit's P positions where neither factor is zero, times
    the most that a chain stretches a row. A sum over them, in any order and any parts, is within
    γ_P·m of G: a term is rounded P times at most, in its product and in P - 1 sums, and zeros add
    no rounding. A factor on one side rounds once more, and a chain, along rows of width w, w + 6
    times. With k = P + 1, and w + 6 for a chain, a unit thus adds sqrt(squares + error) + γ_k·m at
    most by pairs (`pair_squares`), and ‖formed‖ + 2γ_k·m where its gradient is formed; `norm_error`
    is for the norm of what is formed, and for factors.

    All of this is of the unit alone, and so is the choice between the two ways: how much padding
    the others bring moves nothing. What is not bounded here is how positions of other units in the
    same product are rounded; see `fedsim.rounding`.
    """

    def __init__(self, scratch: Buffers, layout: Tensors, num_units: int) -> None:
        self._scratch = scratch
        self._layout = layout
        self._num_units = num_units
        self._passes: list[Segments] = []
        self._uses: dict[str, list[tuple[Use, Segments]]] = {name: [] for name in layout}
        self._vectors: dict[str, torch.Tensor] = {}
        self._merged: dict[str, MergedRows] = {}
        self._masses: dict[str, torch.Tensor] = {}

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
        """Return squares of bounds on what units add, (units, parameters) float64."""
        return torch.stack([self._square(name) for name in self._layout], dim=1)

    def _square(self, name: str) -> torch.Tensor:
        uses, like = self._uses[name], self._layout[name]
        if like.ndim == 1:  # a vector per unit is nothing
            vectors = self._vectors[name] = like.new_zeros(self._num_units, len(like))
            for use, segments in uses:
                use.into(vectors, segments, add=True)
            return block_squares(vectors)
        lookups = [(use, of) for use, of in uses if isinstance(use, Rows)]
        if lookups and len(lookups) == len(uses):
            self._merged[name] = merged(lookups)
            return self._merged[name].squares(self._num_units)
        both = torch.zeros(self._num_units, 2, dtype=torch.float64, device=like.device)
        cheap = self._are_pairs_cheaper(name)
        if len(self._passes) == 1:
            for segment in self._passes[0]:
                both[segment.units] = self._of_segment(name, segment, cheap)
        else:
            for unit in range(self._num_units):
                both[unit] = self._of_unit(name, unit, by_pairs=cheap[unit])
        norms, self._masses[name] = both.unbind(dim=1)
        return norms.square()

    def coarse(self, factors: torch.Tensor, bound: float) -> torch.Tensor:
        """Return (units,) bool: whose terms are so large before they cancel that others' are lost.

        A unit whose gradient is within the bound may be a sum of terms far over it. In one product
        with other units' terms those are rounded to the last bit of the partial sums.
        """
        coarse = torch.zeros(self._num_units, dtype=torch.bool, device=factors.device)
        for column, name in enumerate(self._layout):
            if name in self._masses:
                coarse |= factors[:, column] * self._masses[name] > _MOST_MASS * bound
        return coarse

    def _are_pairs_cheaper(self, name: str) -> list[bool]:
        """Return for each unit whether pairs of the positions that it brings itself are."""
        products = [(use, of) for use, of in self._uses[name] if isinstance(use, Product)]
        positions = [
            sum(
                of.counts[unit] * use.left.shape[1] if of.tokens is None else of.tokens[unit]
                for use, of in products
            )
            for unit in range(self._num_units)
        ]
        uses = [use for use, _ in self._uses[name]]
        return [pairs_are_cheaper(uses, count) for count in positions]

    def _of_segment(self, name: str, segment: Segment, cheap: list[bool]) -> torch.Tensor:
        """Return bounds and masses, (units, 2), of units with all their sequences in one pass."""
        uses = [use for use, _ in self._uses[name]]
        both = torch.zeros(segment.num_units, 2, dtype=torch.float64, device=self._device(name))
        by_pairs = cheap[segment.units]
        if any(by_pairs):
            both, exact = self._by_pairs(name, uses, segment)
            by_pairs = [one and is_exact for one, is_exact in zip(by_pairs, exact, strict=True)]
        for index, done in enumerate(by_pairs):
            if not done:
                rows = segment.rows_of(index)
                both[index] = self._direct(name, [_joined(use, rows) for use in uses])
        return both

    def _of_unit(self, name: str, unit: int, *, by_pairs: bool) -> torch.Tensor:
        """Return bound and mass, (2,), of one unit, wherever its sequences are."""
        parts = []
        for use, segments in self._uses[name]:
            start, count = sum(segments.counts[:unit]), segments.counts[unit]
            if count:
                parts.append(_joined(use, slice(start, start + count)))
        if by_pairs:
            both, exact = self._by_pairs(name, parts, Segment(slice(0, 1), slice(0, 1)))
            if exact[0]:
                return both[0]
        return self._direct(name, parts)

    def _by_pairs(
        self, name: str, uses: Sequence[Use], segment: Segment
    ) -> tuple[torch.Tensor, list[bool]]:
        """Return bounds and masses, (units, 2), of a segment, and which of the bounds are close."""
        pairs = pair_squares(uses, segment)
        norms = (pairs.squares + pairs.error).sqrt()
        norms += self._gamma(name, 1 + pairs.positions) * pairs.mass
        inexact: list[bool] = (pairs.error > _INEXACT * pairs.squares).tolist()
        return torch.stack([norms, pairs.mass], dim=1), [not one for one in inexact]

    def _gamma(self, name: str, roundings: torch.Tensor) -> torch.Tensor:
        ku = roundings.double() * (torch.finfo(self._layout[name].dtype).eps / 2.0)
        return ku / (1.0 - ku)

    def _direct(self, name: str, parts: list[Use]) -> torch.Tensor:
        """Return bound and mass, (2,), of one unit from its gradient, formed in the scratch."""
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
        norm = block_squares(gradient.flatten(1))[0].sqrt()
        if not parts:
            return torch.stack([norm, torch.zeros_like(norm)])
        masses = torch.cat([_masses(part).flatten() for part in parts])
        chained = any(product.chain is not None for product in products)
        roundings = (masses > 0).sum() + (like.shape[-1] + 7 if chained else 1)
        mass = masses.sum()
        return torch.stack([norm + 2.0 * self._gamma(name, roundings) * mass, mass.to(norm.dtype)])

    def _device(self, name: str) -> torch.device:
        return self._layout[name].device

    def drop(self, units: torch.Tensor) -> None:
        """Put zeros for these units: their NaN times a factor of 0 would be NaN."""
        for vectors in self._vectors.values():
            vectors[units] = 0.0
        for name, rows in self._merged.items():
            self._merged[name] = rows.without(units)
        self._uses = {
            name: [(_zeroed(use, segments, units), segments) for use, segments in uses]
            for name, uses in self._uses.items()
        }

    def weighted_sum(self, factors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return Σ over units of factor × gradient; `factors` is (units, parameters) float64."""
        total: dict[str, torch.Tensor] = {}
        for column, (name, like) in enumerate(self._layout.items()):
            of_units = factors[:, column].to(like.dtype)
            if name in self._vectors:
                total[name] = sum_of_rows(of_units, self._vectors[name])
            elif name in self._merged:
                total[name] = self._merged[name].weighted_sum(of_units)
            elif uses := self._uses[name]:
                total[name] = _sum_of_uses(uses, of_units)
        return total


def _sum_of_uses(uses: list[tuple[Use, Segments]], of_units: torch.Tensor) -> torch.Tensor:
    # Products first: what they are of may be made of the parameter.
    uses = sorted(uses, key=lambda used: not isinstance(used[0], Product))
    parts = [use.weighted_sum(of_units[of.unit_of_row(of_units.device)]) for use, of in uses]
    products = [use for use, _ in uses if isinstance(use, Product)]
    total = parts[0]
    for part in parts[1 : len(products)]:
        total += part
    _chain(products, total)
    for part in parts[len(products) :]:
        total += part
    return total


def _chain(products: list[Product], gradient: torch.Tensor) -> None:
    """Make of the products' sum the gradient of the parameter that is stored."""
    if products and products[0].chain is not None:
        products[0].chain(gradient)


def _joined(use: Use, rows: slice) -> Use:
    """Return the use by some sequences as if they were one long one."""
    return use.map(lambda value: value[rows].flatten(0, 1)[None])


def _masses(use: Use) -> torch.Tensor:
    """Return at least ‖l_t‖‖r_t‖ of every position, zero where one of them is, float64."""
    if isinstance(use, Product):
        stretch = 1.0 if use.chain is None else use.chain.stretch
        return _at_least_norms(use.left) * _at_least_norms(use.right) * stretch
    return _at_least_norms(use.values)


def _at_least_norms(vectors: torch.Tensor) -> torch.Tensor:
    """Return the norms, float64, and what rounding and underflow may have lost of them."""
    norms: torch.Tensor = torch.linalg.vector_norm(vectors, dim=-1).double()
    return torch.where(norms > 0, 1.01 * norms + _LOST, 0.0)


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
