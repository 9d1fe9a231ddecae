"""Engine `ghost`: norms without per-unit gradients, and the clipped sum from the same pass.

For models whose per-unit gradients do not fit the memory. The squared norm of a unit's Σ_t l_t·r_tᵀ
is Σ_st (l_s·l_t)(r_s·r_t), a sum over pairs of positions instead of over entries (ghost norms,
Goodfellow 2015 for one position, Li et al. 2022 for sequences). Where a unit has so many positions
that its gradient is cheaper, the gradient is formed, a few units at a time. With the factors known,
the sum is one product of what was captured: no second backward pass (book-keeping, Bu et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import compress, groupby
from operator import itemgetter
from typing import Literal

import torch

from fedsim.clients.engines.clipped_sums import GROUP, GROUPS, block_squares, sum_of_rows
from fedsim.clients.engines.per_example.batched import BatchedEngine, Buffers
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost_norms import ghost_is_cheaper, ghost_norms, present
from fedsim.clients.engines.per_example.gradient_terms import (
    Masses,
    MergedRows,
    Product,
    Rows,
    Segment,
    Segments,
    StackedProduct,
    Term,
    by_unit,
    merged,
)
from fedsim.tensors import Tensors

# Relative error bound of a ghost norm's square, above which the gradient is formed instead. The
# clip allows for the bound, which costs a unit a two-thousandth of its norm at most.
_INEXACT = 1e-3
# Positions of a unit, above which its gradient is formed twice.
_MANY = 768
# More than the norm of any vector of float32 numbers whose squares all underflow.
_LOST = 1e-16
# Entries of the gradients that are formed at once, at least one: they stay in the cache.
_AT_ONCE = 1 << 20
# Σ of the norms of a unit's terms over the clip's bound, above which the unit is added alone. Terms
# without relation to each other come to the root of their number.
_MOST_MASS = 64.0
# Of the clip's bound, that a factor times one side of a product may lose by underflow.
_MOST_LOST = 1e-12
_LEAST_STEP = 2.0**-149  # of float32: what is nearer to zero is a multiple of it


_Way = Literal["ghost", "formed", "formed twice"]


class Ghost:
    """Keeps the terms of one chunk; see `Gradients` in `gradient_terms.py`.

    Vectors and tables of looked-up rows are added as the very numbers whose norms were taken.
    What products add is never formed, and is rounded otherwise than what the norm was taken of. So
    `squares` are not those of the gradient but of the most that the unit, alone in the chunk, adds.

    Proof. Let G be the gradient that the captured numbers have in exact arithmetic, u half of eps,
    and m = Σ ‖l_t‖‖r_t‖ + Σ ‖v_s‖ over the unit's P positions where neither factor is zero, times
    the most that a chain stretches a row. A sum over them, in any order and any parts, is within
    γ_P·m of G: a term is rounded P times at most, in its product and in P - 1 sums, and zeros add
    no rounding. A factor on one side rounds once more (what underflows of it is 1e-12 of the bound,
    or the unit is added alone), and a chain, along rows of width w, w + 6 times. With k = P + 1,
    and w + 6 for a chain, a unit thus adds sqrt(squares + error) + γ_k·m at most by
    `ghost_norms`, and ‖formed‖ + 2γ_k·m where its gradient is formed; `norm_error`
    is for the norm of what is formed, and for factors. Of 1024 positions that would be 0.4 % more
    than the norm, of 65,536 twice the norm. So a gradient of many positions is formed once more to
    be added, the same products of the same numbers, and ‖formed‖ is what it adds.

    All of this is of the unit alone, and so is the choice between the ways: how much padding the
    others bring moves nothing. What is not bounded here is how positions of other units in the same
    product are rounded; see `fedsim.noise`.
    """

    def __init__(self, scratch: Buffers, layout: Tensors, num_units: int, room: int = 0) -> None:
        """Begin a chunk. It keeps all its terms to the end, so `room` is not used."""
        self._scratch = scratch
        self._layout = layout
        self._num_units = num_units
        self._passes: list[Segments] = []
        self._terms: dict[str, list[tuple[Term, Segments]]] = {name: [] for name in layout}
        self._vectors: dict[str, torch.Tensor] = {}
        self._merged: dict[str, MergedRows] = {}
        self._masses: dict[str, torch.Tensor] = {}
        self._all = Masses(layout, num_units)  # also of what `_masses` has not
        self._lost: dict[str, torch.Tensor] = {}  # by underflow of a scaled side, at most
        self._formed: dict[str, list[_Group]] = {}
        self._dropped: set[int] = set()
        self._squares: torch.Tensor | None = None

    def start_pass(self, segments: Segments) -> None:
        """Set the units that the sequences of the following terms belong to."""
        self._passes.append(segments)

    def __call__(self, name: str, term: Term) -> None:
        """Take one term of parameter `name`.

        Norms and the sum are different arithmetic on the same numbers: both in the parameters'
        type, so that they agree to its rounding.
        """
        if isinstance(term, Product):
            lost = _lost_by_underflow(term, self._passes[-1])
            self._lost[name] = self._lost[name] + lost if name in self._lost else lost
        self._all.add(name, term, self._passes[-1])
        self._terms[name].append((term.to(self._layout[name].dtype), self._passes[-1]))

    def squares(self) -> torch.Tensor:
        """Return squares of bounds on what units add, (units, parameters) float64."""
        if self._squares is None:  # groups are formed once, and added once
            self._squares = torch.stack([self._square(name) for name in self._layout], dim=1)
        return self._squares

    def _square(self, name: str) -> torch.Tensor:
        terms, like = self._terms[name], self._layout[name]
        if like.ndim == 1:  # a vector per unit takes little memory
            vectors = self._vectors[name] = like.new_zeros(self._num_units, len(like))
            for term, segments in terms:
                term.into(vectors, segments, add=True)
            return block_squares(vectors)
        lookups = [(term, of) for term, of in terms if isinstance(term, Rows)]
        if lookups and len(lookups) == len(terms):
            self._merged[name] = merged(lookups)
            return self._merged[name].squares(self._num_units)
        both = torch.zeros(self._num_units, 2, dtype=torch.float64, device=like.device)
        ways = self._ways(name)
        split = set()  # units with sequences in several passes
        for segments in self._passes:
            if not segments.whole:
                split |= {unit for unit, count in enumerate(segments.counts) if count}
                continue
            in_pass = [term for term, of in terms if of is segments]
            for segment in segments:
                own = ways[segment.units]
                both[segment.units] = self._of_segment(name, in_pass, segment, own)
        for unit in split:
            both[unit] = self._of_unit(name, unit, ways[unit])
        norms, self._masses[name] = both.unbind(dim=1)
        return norms.square()

    def coarse(self, factors: torch.Tensor, bound: float) -> torch.Tensor:
        """Return (units,) bool: units whose terms would drown those of others before they cancel.

        A unit whose gradient is within the bound may be a sum of terms far over it. In one product
        with other units' terms those are rounded to the last bit of the partial sums. So are units
        of which a factor times one side is too small for the proof.
        """
        coarse = self._all.too_large(factors, bound)
        for lost in self._lost.values():
            coarse |= lost > _MOST_LOST * bound
        for column, name in enumerate(self._layout):
            if name in self._masses:
                coarse |= factors[:, column] * self._masses[name] > _MOST_MASS * bound
        return coarse

    def _ways(self, name: str) -> list[_Way]:
        """Return for each unit the way to its norm that is cheapest for its own positions."""
        terms = [term for term, _ in self._terms[name]]
        products = [(term, of) for term, of in self._terms[name] if isinstance(term, Product)]

        def way(unit: int) -> _Way:
            positions = sum(
                of.counts[unit] * term.left.shape[1]
                if of.tokens is None
                else of.tokens[unit] * term.per_token
                for term, of in products
            )
            if ghost_is_cheaper(terms, positions):
                return "ghost"
            return "formed" if positions <= _MANY else "formed twice"

        return [way(unit) for unit in range(self._num_units)]

    def _of_segment(
        self, name: str, terms: Sequence[Term], segment: Segment, ways: Sequence[_Way]
    ) -> torch.Tensor:
        """Return bounds and masses, (units, 2), of units with all their sequences in one pass."""
        both = torch.zeros(
            segment.num_units, 2, dtype=torch.float64, device=self._layout[name].device
        )
        # Runs of neighbours with the same way are computed together.
        for way, run in groupby(range(len(ways)), ways.__getitem__):
            indices = list(run)
            places = slice(indices[0], indices[-1] + 1)
            part = segment.part(places.start, places.stop)
            if way == "formed twice":
                both[places, 0] = self._norms(name, terms, part, again=True)
            elif way == "formed":
                both[places] = self._formed_once(name, terms, part)
            else:
                both[places], inexact = self._by_ghost_norms(name, terms, part)
                # Where terms cancel, rounding may be as large as the norm: these are formed.
                for index in compress(indices, inexact):
                    both[index] = self._formed_once(name, terms, segment.part(index, index + 1))[0]
        return both

    def _of_unit(self, name: str, unit: int, way: _Way) -> torch.Tensor:
        """Return bound and mass, (2,), of one unit, wherever its sequences are."""
        parts = []
        for term, segments in self._terms[name]:
            start, count = sum(segments.counts[:unit]), segments.counts[unit]
            if count:
                parts.append(_joined(term, slice(start, start + count)))
        alone = Segment(slice(unit, unit + 1), slice(0, 1))
        return self._of_segment(name, parts, alone, [way])[0]

    def _by_ghost_norms(
        self, name: str, terms: Sequence[Term], segment: Segment
    ) -> tuple[torch.Tensor, list[bool]]:
        """Return bounds and masses, (units, 2), of a segment, and which bounds are too far off."""
        pairs = ghost_norms(terms, segment)
        norms = (pairs.squares + pairs.error).sqrt()
        norms += self._gamma(name, 1 + pairs.positions) * pairs.mass
        inexact: list[bool] = (pairs.error > _INEXACT * pairs.squares).tolist()
        return torch.stack([norms, pairs.mass], dim=1), inexact

    def _gamma(self, name: str, roundings: torch.Tensor) -> torch.Tensor:
        ku = roundings.double() * (torch.finfo(self._layout[name].dtype).eps / 2.0)
        return ku / (1.0 - ku)

    def _formed_once(self, name: str, terms: Sequence[Term], segment: Segment) -> torch.Tensor:
        """Return bounds and masses, (units, 2), of gradients that one product will add."""
        norms = self._norms(name, terms, segment, again=False)
        if not terms:
            return torch.stack([norms, torch.zeros_like(norms)], dim=1)
        masses = torch.cat([_masses(term, segment) for term in terms], dim=1)
        chained = any(isinstance(term, Product) and term.chain is not None for term in terms)
        width = self._layout[name].shape[-1]
        roundings = (masses > 0).sum(dim=1) + (width + 7 if chained else 1)
        mass = masses.sum(dim=1)
        return torch.stack([norms + 2.0 * self._gamma(name, roundings) * mass, mass], dim=1)

    def _norms(
        self, name: str, terms: Sequence[Term], segment: Segment, *, again: bool
    ) -> torch.Tensor:
        """Return the norms, (units,) float64, of gradients that are formed, some at a time.

        With `again` they will be formed again, in the same groups, to be added.
        """
        at_once = min(GROUP, max(1, _AT_ONCE // self._layout[name].numel()))
        norms = []
        for start in range(0, segment.num_units, at_once):
            part = segment.part(start, min(start + at_once, segment.num_units))
            group = _Group(part, [term.map(itemgetter(part.rows)) for term in terms])
            norms.append(block_squares(self._form(name, group).flatten(1)).sqrt())
            if again:
                self._formed.setdefault(name, []).append(group)
        return torch.cat(norms)

    def _form(self, name: str, group: _Group) -> torch.Tensor:
        """Return the gradients of a group, (units, *shape), in the scratch."""
        like, segments = self._layout[name], group.segments
        gradients = self._scratch.take(str(tuple(like.shape)), segments.num_units, like)
        products = [term for term in group.terms if isinstance(term, Product)]
        if not products:
            gradients.zero_()
        for place, product in enumerate(products):
            product.into(gradients, segments, add=place > 0)
        # The chain rule applies to the products alone, before other terms are added.
        for gradient in gradients:
            _chain(products, gradient)
        for term in group.terms:
            if not isinstance(term, Product):
                term.into(gradients, segments, add=True)
        for unit in self._dropped.intersection(range(group.units.start, group.units.stop)):
            # Their terms stay in the products: zeros in a copy with another layout could change how
            # the group's other products are rounded, against when their norms were taken.
            gradients[unit - group.units.start] = 0.0
        return gradients

    def drop(self, units: torch.Tensor) -> None:
        """Put zeros for these units: their NaN times a factor of 0 would be NaN."""
        for vectors in self._vectors.values():
            vectors[units] = 0.0
        for name, rows in self._merged.items():
            self._merged[name] = rows.without(units)
        self._terms = {
            name: [(_zeroed(term, segments, units), segments) for term, segments in terms]
            for name, terms in self._terms.items()
        }
        self._dropped |= set(units.tolist())

    def weighted_sum(self, factors: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield Σ over units of factor × gradient; `factors` is (units, parameters) float64."""
        for column, (name, like) in enumerate(self._layout.items()):
            of_units = factors[:, column].to(like.dtype)
            if name in self._vectors:
                yield name, sum_of_rows(of_units, self._vectors[name])
            elif name in self._merged:
                yield name, self._merged[name].weighted_sum(of_units)
            elif self._terms[name]:
                yield name, self._sum(name, of_units)

    def _sum(self, name: str, of_units: torch.Tensor) -> torch.Tensor:
        """Return Σ factor × gradient: group by group what is formed, by one product the others."""
        groups, others = self._formed.get(name, []), of_units.clone()
        parts = []
        for start in range(0, len(groups), GROUPS):
            partial = torch.zeros_like(self._layout[name])
            for group in groups[start : start + GROUPS]:
                partial.view(-1).add_(of_units[group.units] @ self._form(name, group).flatten(1))
                others[group.units] = 0.0
            parts.append(partial)
        if sum(group.segments.num_units for group in groups) < self._num_units:
            parts.append(_sum_of_terms(self._terms[name], others))
        return parts[0] if len(parts) == 1 else reduce(_add_in_float64, parts)


class _Group:
    """Neighbouring units whose gradients are formed together, and their terms.

    Attributes:
        units: their positions in the chunk.
        terms: of their sequences alone.
        segments: the units of these sequences, the group's first unit being 0.
    """

    def __init__(self, segment: Segment, terms: Sequence[Term]) -> None:
        self.units = segment.units
        self.terms = terms
        num_units, rows = segment.num_units, segment.rows
        each = (rows.stop - rows.start) // num_units
        self.segments = Segments([each] * num_units, whole=True)


def _add_in_float64(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one.double().add_(other)


def _sum_of_terms(terms: list[tuple[Term, Segments]], of_units: torch.Tensor) -> torch.Tensor:
    # Products first: the chain rule applies to them alone.
    terms = sorted(terms, key=lambda used: not isinstance(used[0], Product))
    parts = [term.weighted_sum(of_units[of.unit_of_row(of_units.device)]) for term, of in terms]
    products = [term for term, _ in terms if isinstance(term, Product)]
    total = parts[0]
    for part in parts[1 : len(products)]:
        total += part
    _chain(products, total)
    for part in parts[len(products) :]:
        total += part
    return total


def _chain(products: list[Product], gradient: torch.Tensor) -> None:
    """Apply the products' chain rule, in place: to the gradient of the stored parameter."""
    if products and products[0].chain is not None:
        products[0].chain(gradient)


def _lost_by_underflow(product: Product, segments: Segments) -> torch.Tensor:
    """Return (units,) float64: how far rounding of a scaled narrow side to a float may move a unit.

    Each entry by half a step at most, so the product by √entries · ‖wide side‖ halves of it.
    """
    left, right = product.left, product.right
    if isinstance(product, StackedProduct) or left.shape[-1] < right.shape[-1]:
        narrow, wide = left, right
    else:
        narrow, wide = right, left
    rows = segments.unit_of_row(wide.device)
    zeros = torch.zeros(segments.num_units, dtype=torch.float64, device=wide.device)
    squares = torch.linalg.vector_norm(wide, dim=(1, 2)).double().square_()
    entries = torch.bincount(rows, minlength=segments.num_units) * narrow[0].numel()
    lost = zeros.index_add_(0, rows, squares).mul_(entries).sqrt_().mul_(_LEAST_STEP / 2.0)
    return lost if product.chain is None else lost * product.chain.stretch


def _joined(term: Term, rows: slice) -> Term:
    """Return a term of some sequences, laid end to end as one."""
    return term.map(lambda value: value[rows].flatten(0, 1)[None])


def _masses(term: Term, segment: Segment) -> torch.Tensor:
    """Return upper bounds of ‖l_t‖‖r_t‖, (units, positions) float64; 0 where a factor is 0."""
    if isinstance(term, Product):
        stretch = 1.0 if term.chain is None else term.chain.stretch
        left = _at_least_norms(by_unit(term.left, segment))
        return left * _at_least_norms(by_unit(term.right, segment)) * stretch
    return _at_least_norms(by_unit(term.values, segment))


def _at_least_norms(vectors: torch.Tensor) -> torch.Tensor:
    """Return upper bounds of the norms, float64: with room for rounding and underflow."""
    norms: torch.Tensor = torch.linalg.vector_norm(vectors, dim=-1).double()
    return torch.where(present(vectors), 1.01 * norms + _LOST, 0.0)


def _zeroed(term: Term, segments: Segments, units: torch.Tensor) -> Term:
    gone = torch.isin(segments.unit_of_row(units.device), units)
    return term.map(lambda value: value.masked_fill(gone.view(-1, *[1] * (value.ndim - 1)), 0))


def ghost(model: OpenModel, num_bytes: int | None = None) -> BatchedEngine:
    """Return the engine that keeps no unit's gradient; see `BatchedEngine`."""
    return BatchedEngine(model, Ghost, num_bytes=num_bytes, keeps_terms=True)
