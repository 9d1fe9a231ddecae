"""Engine `materialised`: full per-unit gradients, in one reused buffer for each parameter.

A batched matrix product over units costs as much as one product over all of them; norms and the
clipped sum are two passes over memory. If a unit's sequences are in several passes, the factors of
its products are kept (`DeferredProducts`), so each product is formed once. The gradient of a table
that is only used for look-ups stays a list of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch

from fedsim.clients.engines.clipped_sums import add_rows, block_squares
from fedsim.clients.engines.per_example.batched import BatchedEngine, Buffers
from fedsim.clients.engines.per_example.capture import NotCovered, OpenModel
from fedsim.clients.engines.per_example.gradient_terms import (
    Chain,
    MergedRows,
    Product,
    Rows,
    Segments,
    Term,
    Total,
    merged,
    write_product,
)
from fedsim.tensors import Tensors


class DeferredProducts:
    """Products of units with sequences in several passes, formed after the last pass.

    Each unit's gradient is then written once, over all its passes, while it is in the cache.
    """

    def __init__(self, num_units: int) -> None:
        self._formed = [False] * num_units
        self._passes: list[tuple[Segments, dict[str, list[Product]]]] = []
        self.num_bytes = 0

    def add(self, name: str, product: Product, segments: Segments) -> None:
        """Keep a product of a pass; all products of one pass must be added before the next pass."""
        if not self._passes or self._passes[-1][0] is not segments:
            self._passes.append((segments, {}))
        self._passes[-1][1].setdefault(name, []).append(product)
        self.num_bytes += product.left.nbytes + product.right.nbytes

    def write(self, buffer: Callable[[str], torch.Tensor]) -> None:
        """Form all products, add them to those written before, and drop their factors.

        Args:
            buffer: function from a parameter's name to its gradients, (units, *shape).
        """
        rows_of = [_rows_of_units(segments) for segments, _ in self._passes]
        for name in dict.fromkeys(name for _, products in self._passes for name in products):
            for unit, gradient in enumerate(buffer(name)):
                add = self._formed[unit]
                for rows, (_, products) in zip(rows_of, self._passes, strict=True):
                    if unit not in rows:
                        continue
                    for product in products.get(name, ()):  # several, if the layer is called again
                        left, right = (
                            side[rows[unit]].flatten(0, 1) for side in (product.left, product.right)
                        )
                        write_product(gradient, left.T, right, add=add)
                        add = True
        for rows in rows_of:
            for unit in rows:
                self._formed[unit] = True
        self._passes.clear()
        self.num_bytes = 0


def _rows_of_units(segments: Segments) -> dict[int, slice]:
    """Return the sequences in the pass of each of its units."""
    ends = accumulate(segments.counts)
    counted = enumerate(zip(ends, segments.counts, strict=True))
    return {unit: slice(end - count, end) for unit, (end, count) in counted if count}


class Materialised:
    """Collects the terms of one chunk; see `Gradients` in `gradient_terms.py`.

    Norms are computed from the same rows that are added, so the clip's margin is `norm_error`.
    """

    def __init__(self, buffers: Buffers, layout: Tensors, num_units: int, room: int) -> None:
        self._buffers = buffers
        self._layout = layout
        self._num_units = num_units
        self._room = room
        self._deferred = DeferredProducts(num_units)
        self._segments = Segments([], whole=True)
        self._num_passes = 0
        self._passes_of: dict[str, set[int]] = {}
        self._dense: dict[str, torch.Tensor] = {}
        # One tensor holds all vectors: a large network has hundreds of biases and norms.
        sizes = {name: len(like) for name, like in layout.items() if like.ndim == 1}
        like = next(iter(layout.values())).new_empty(sum(sizes.values()))
        self._all_vectors = buffers.take("all vectors", num_units, like).zero_()
        parts = torch.split(self._all_vectors, list(sizes.values()), dim=1)
        self._vectors = dict(zip(sizes, parts, strict=True))
        self._rows: dict[str, list[tuple[Rows, Segments]]] = {}
        self._merged: dict[str, MergedRows] = {}
        self._chains: dict[str, Chain] = {}

    def start_pass(self, segments: Segments) -> None:
        """Set the units that the sequences of the following terms belong to."""
        if self._deferred.num_bytes > self._room:
            self._deferred.write(self._buffer)
        self._segments = segments
        self._num_passes += 1

    def __call__(self, name: str, term: Term) -> None:
        """Add one term of parameter `name`."""
        if isinstance(term, Rows):  # dense only if the table has a dense term
            self._rows.setdefault(name, []).append((term, self._segments))
            return
        passes = self._passes_of.setdefault(name, set())
        repeated = self._num_passes in passes
        passes.add(self._num_passes)
        if isinstance(term, Total):
            term.into(self._vectors[name], self._segments, add=True)
            return
        if term.chain is not None:
            self._chains[name] = term.chain
        # Form the product now for units with all sequences in this pass; defer it for the others.
        if self._segments.whole:
            term.into(self._buffer(name), self._segments, add=repeated)
        else:
            self._deferred.add(name, term, self._segments)

    def _buffer(self, name: str, *, zero: bool = False) -> torch.Tensor:
        """Return the parameter's gradient buffer; with `zero`, the first call sets it to zero."""
        if name not in self._dense:
            taken = self._buffers.take(name, self._num_units, self._layout[name])
            self._dense[name] = taken.zero_() if zero else taken
        return self._dense[name]

    def squares(self) -> torch.Tensor:
        """Return squared norms, (units, parameters) float64; all terms must be in.

        Raises:
            NotCovered: a pass did not use a parameter, so its buffer is uninitialised.
        """
        for name, passes in self._passes_of.items():
            if len(passes) != self._num_passes:
                raise NotCovered(f"{name} (not every sequence uses it)")
        self._deferred.write(self._buffer)
        for name, chain in self._chains.items():
            for gradient in self._dense[name]:  # one unit at a time stays in the cache
                chain(gradient)
        for name, lookups in self._rows.items():
            self._look_up(name, lookups)
        return torch.stack([self._square(name) for name in self._layout], dim=1)

    def _look_up(self, name: str, lookups: list[tuple[Rows, Segments]]) -> None:
        if name not in self._dense:
            self._merged[name] = merged(lookups)
            return
        gradients = self._buffer(name, zero=True)
        for term, segments in lookups:
            term.into(gradients, segments, add=True)

    def _square(self, name: str) -> torch.Tensor:
        num_units = self._num_units
        if name in self._vectors:
            norms = torch.linalg.vector_norm(self._vectors[name], dim=1, dtype=torch.float64)
            return torch.Tensor(norms.square())
        if name in self._merged:
            return self._merged[name].squares(num_units)
        if name not in self._dense:  # no term used the parameter
            return torch.zeros(num_units, dtype=torch.float64, device=self._layout[name].device)
        return block_squares(self._dense[name].flatten(1))

    def drop_non_finite(self) -> None:
        """Replace numbers that are not finite by zeros: a factor of 0 times NaN would be NaN."""
        for gradients in (self._all_vectors, *self._dense.values()):
            gradients.nan_to_num_(0.0, 0.0, 0.0)
        self._merged = {name: rows.finite() for name, rows in self._merged.items()}

    def add_weighted(self, sums: Tensors, factors: torch.Tensor) -> None:
        """Add Σ over units of factor × gradient; `factors` is (units, parameters) float64."""
        narrow = factors.T.to(next(iter(self._layout.values())).dtype).contiguous()
        rows = self._vectors | self._dense
        for name, factor in zip(self._layout, narrow, strict=True):
            if name in self._merged:
                self._merged[name].add_weighted(sums[name], factor)
            elif name in rows:
                add_rows(sums[name], factor, rows[name])


def materialised(
    model: OpenModel, num_bytes: int | None = None, tokens_per_unit: float | None = None
) -> BatchedEngine:
    """Return the engine that forms every unit's gradient; see `BatchedEngine`."""
    return BatchedEngine(model, Materialised, num_bytes=num_bytes, tokens_per_unit=tokens_per_unit)
