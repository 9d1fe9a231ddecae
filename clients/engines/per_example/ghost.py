"""Engine `ghost`: norms without per-unit gradients, and the clipped sum from the same pass.

For models whose per-unit gradients do not fit in memory. Norms are ghost norms (`ghost_norms.py`).
If a unit has so many positions that its gradient is cheaper, that gradient is formed, a few units
at a time, and dropped. With the clip factors, the sum is one product over all captured tensors,
without a second backward pass (book-keeping, Bu et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import torch

from fedsim.clients.engines.clipped_sums import GROUP, add_rows, block_squares
from fedsim.clients.engines.per_example.batched import BatchedEngine, Buffers
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost_norms import ghost_is_cheaper, ghost_squares
from fedsim.clients.engines.per_example.gradient_terms import (
    MergedRows,
    Product,
    Rows,
    Segment,
    Segments,
    Term,
    merged,
)
from fedsim.tensors import Tensors

# Entries of the gradients that are formed at once (at least one gradient); they fit in the cache.
_AT_ONCE = 1 << 20


class Ghost:
    """Keeps the terms of one chunk; see `Gradients` in `gradient_terms.py`.

    With mixed precision the factors of products stay in bfloat16; norms and sums use float32.
    """

    def __init__(self, scratch: Buffers, layout: Tensors, num_units: int, room: int = 0) -> None:
        """Begin a chunk. It keeps all its terms to the end, so it ignores `room`."""
        self._scratch = scratch
        self._layout = layout
        self._num_units = num_units
        self._passes: list[Segments] = []
        self._terms: dict[str, list[tuple[Term, Segments]]] = {name: [] for name in layout}
        self._vectors: dict[str, torch.Tensor] = {}
        self._merged: dict[str, MergedRows] = {}

    def start_pass(self, segments: Segments) -> None:
        """Set the units that the sequences of the following terms belong to."""
        self._passes.append(segments)

    def __call__(self, name: str, term: Term) -> None:
        """Take one term of parameter `name`."""
        self._terms[name].append((term, self._passes[-1]))

    def squares(self) -> torch.Tensor:
        """Return squared norms, (units, parameters) float64."""
        return torch.stack([self._square(name) for name in self._layout], dim=1)

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
        squares = torch.zeros(self._num_units, dtype=torch.float64, device=like.device)
        split = set()  # units with sequences in several passes
        for segments in self._passes:
            if not segments.whole:
                split |= {unit for unit, count in enumerate(segments.counts) if count}
                continue
            in_pass = [term for term, of in terms if of is segments]
            for segment in segments:
                squares[segment.units] = self._of_segment(name, in_pass, segment)
        for unit in split:
            squares[unit] = self._of_unit(name, unit)
        return squares

    def _of_segment(self, name: str, terms: Sequence[Term], segment: Segment) -> torch.Tensor:
        """Return squares, (units,), of units with all their sequences in one pass."""
        sequences = (segment.rows.stop - segment.rows.start) // segment.num_units
        products = [term for term in terms if isinstance(term, Product)]
        if ghost_is_cheaper(terms, sequences * sum(term.left.shape[1] for term in products)):
            return ghost_squares(terms, segment)
        at_once = min(GROUP, max(1, _AT_ONCE // self._layout[name].numel()))
        squares = []
        for start in range(0, segment.num_units, at_once):
            part = segment.part(start, min(start + at_once, segment.num_units))
            own = [term.map(itemgetter(part.rows)) for term in terms]
            segments = Segments([sequences] * part.num_units, whole=True)
            squares.append(block_squares(self._form(name, own, segments).flatten(1)))
        return torch.cat(squares)

    def _of_unit(self, name: str, unit: int) -> torch.Tensor:
        """Return the square, (), of one unit with sequences in several passes."""
        parts = []
        for term, segments in self._terms[name]:
            start, count = sum(segments.counts[:unit]), segments.counts[unit]
            if count:
                parts.append(_joined(term, slice(start, start + count)))
        return self._of_segment(name, parts, Segment(slice(0, 1), slice(0, 1)))[0]

    def _form(self, name: str, terms: Sequence[Term], segments: Segments) -> torch.Tensor:
        """Return the gradients of some units, (units, *shape), in a scratch tensor."""
        like = self._layout[name]
        gradients = self._scratch.take(str(tuple(like.shape)), segments.num_units, like)
        products = [term for term in terms if isinstance(term, Product)]
        if not products:
            gradients.zero_()
        for place, product in enumerate(products):
            product.into(gradients, segments, add=place > 0)
        # The chain rule applies to the products alone, before other terms are added.
        for gradient in gradients:
            _chain(products, gradient)
        for term in terms:
            if not isinstance(term, Product):
                term.into(gradients, segments, add=True)
        return gradients

    def drop_non_finite(self) -> None:
        """Replace numbers that are not finite by zeros: a factor of 0 times NaN would be NaN."""
        for vectors in self._vectors.values():
            vectors.nan_to_num_(0.0, 0.0, 0.0)
        self._merged = {name: rows.finite() for name, rows in self._merged.items()}
        self._terms = {
            name: [(term.finite(), segments) for term, segments in terms]
            for name, terms in self._terms.items()
        }

    def add_weighted(self, sums: Tensors, factors: torch.Tensor) -> None:
        """Add Σ over units of factor × gradient; `factors` is (units, parameters) float64."""
        for column, (name, like) in enumerate(self._layout.items()):
            of_units = factors[:, column].to(like.dtype)
            if name in self._vectors:
                add_rows(sums[name], of_units, self._vectors[name])
            elif name in self._merged:
                self._merged[name].add_weighted(sums[name], of_units)
            else:
                _add_terms(sums[name], self._terms[name], of_units)


def _add_terms(
    total: torch.Tensor, terms: list[tuple[Term, Segments]], of_units: torch.Tensor
) -> None:
    products = [term for term, _ in terms if isinstance(term, Product)]
    chained = any(product.chain is not None for product in products)
    of_products = torch.zeros_like(total) if chained else total
    for term, of in terms:
        to = of_products if isinstance(term, Product) else total
        term.add_weighted(to, of_units[of.unit_of_row(of_units.device)])
    if chained:  # the chain rule applies to products alone
        _chain(products, of_products)
        total += of_products


def _chain(products: list[Product], gradient: torch.Tensor) -> None:
    """Apply the products' chain rule, in place: to the gradient of the stored parameter."""
    if products and products[0].chain is not None:
        products[0].chain(gradient)


def _joined(term: Term, rows: slice) -> Term:
    """Return the term of some sequences, concatenated to one sequence."""
    return term.map(lambda value: value[rows].flatten(0, 1)[None])


def ghost(
    model: OpenModel, num_bytes: int | None = None, tokens_per_unit: float | None = None
) -> BatchedEngine:
    """Return the engine that keeps no unit's gradient; see `BatchedEngine`."""
    return BatchedEngine(
        model, Ghost, num_bytes=num_bytes, keeps_terms=True, tokens_per_unit=tokens_per_unit
    )
