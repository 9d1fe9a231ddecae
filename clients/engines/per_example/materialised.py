"""Engine `materialised`: per-unit gradients in full, one reused buffer a parameter, a row a unit.

A batched matrix product over units costs what the one product over all of them costs, and norms
and the clipped sum are two passes over memory. Where a unit's sequences are spread over passes, the
sides of its products are kept (`DeferredProducts`), so that each product is formed once. The
gradient of a table of which rows are only looked up stays a list of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from fedsim.clients.engines.clipped_sums import block_squares, sum_of_rows
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
from fedsim.clients.models.gpu_kernels import sent
from fedsim.tensors import Tensors

_WAITING = 2**27  # bytes of vectors' terms that wait for others, at most


class DeferredProducts:
    """Products of units whose sequences are spread over passes, formed once all passes are done.

    Each unit's gradient is then written once, in the cache, over all its passes. Two neighbouring
    units are formed together, one on each core: two cores lose a quarter of their speed over one
    product of this size, and little over two.
    """

    def __init__(self, num_units: int) -> None:
        self._formed = [False] * num_units
        self._passes: list[_Pass] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of the sides that are kept."""
        return sum(deferred.num_bytes for deferred in self._passes)

    def add(self, name: str, product: Product, segments: Segments) -> None:
        """Keep a product of a pass; a pass's products come one after the other."""
        if not self._passes or self._passes[-1].segments is not segments:
            self._passes.append(_Pass(segments))
        self._passes[-1].add(name, product)

    def write(self, buffer: Callable[[str], torch.Tensor]) -> None:
        """Form all products, added to those written before, and drop their sides.

        Args:
            buffer: gives (units, *shape) for a parameter.
        """
        # Parameter by parameter and unit by unit: a gradient is written over all passes in a row,
        # while it is in the cache.
        steps = list(_steps(self._passes, self._formed))
        for name in dict.fromkeys(name for deferred in self._passes for name in deferred.parts):
            gradients = buffer(name)
            for step in steps:
                add = step.add
                for part in step.of.parts.get(name, ()):  # several, if the layer is called again
                    part.write(gradients, step, add=add)
                    add = True
        self._passes.clear()


class _Pass:
    """The products of one pass.

    Attributes:
        segments: whose sequences are in it.
        starts: each unit's first sequence.
        parts: by parameter.
        num_bytes: of them.
    """

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.starts = [0, *accumulate(segments.counts)]
        self.parts: dict[str, list[_Part]] = {}
        self.num_bytes = 0

    def add(self, name: str, product: Product) -> None:
        self.parts.setdefault(name, []).append(_Part(product))
        self.num_bytes += product.left.nbytes + product.right.nbytes


@dataclass(frozen=True)
class _Step:
    """One product of one pass, or two of the same size.

    Attributes:
        of: the pass.
        unit: the first unit's place in the chunk.
        start: the first unit's first sequence in the pass.
        size: how many sequences.
        distance: from the first unit's sequences to the second one's; 0 for a single unit.
        add: whether the units have gradients already.
    """

    of: _Pass
    unit: int
    start: int
    size: int
    distance: int
    add: bool


def _steps(passes: Sequence[_Pass], formed: list[bool]) -> Iterator[_Step]:
    """Yield the products to form: two units at a time, each over all passes.

    A product is of all sequences that a unit has in the pass, whoever its neighbour is.

    Args:
        passes: all.
        formed: (units,) whether a unit has a gradient already; changed.
    """
    for first in range(0, len(formed), 2):
        units = range(first, min(first + 2, len(formed)))
        for deferred in passes:
            counts, starts = deferred.segments.counts, deferred.starts
            sizes = {(counts[unit], formed[unit]) for unit in units}
            together = len(units) == 2 and len(sizes) == 1
            for unit in units[:1] if together else units:
                if size := counts[unit]:
                    distance = size if together else 0
                    yield _Step(deferred, unit, starts[unit], size, distance, formed[unit])
            for unit in units:
                formed[unit] |= counts[unit] > 0


class _Part:
    """The two sides of one pass's products, (positions of all its sequences, size)."""

    def __init__(self, product: Product) -> None:
        self._length = product.left.shape[1]
        self._left, self._right = product.left.flatten(0, 1), product.right.flatten(0, 1)

    def write(self, gradients: torch.Tensor, step: _Step, *, add: bool) -> None:
        """Write a step's products, or add them."""
        unit, start, size = step.unit, step.start * self._length, step.size * self._length
        if step.distance:
            distance = step.distance * self._length
            left, right = (_two(side, start, size, distance) for side in (self._left, self._right))
            write_product(gradients[unit : unit + 2], left.mT, right, add=add)
        else:  # a plain product: less overhead than a batch of one
            rows = slice(start, start + size)
            write_product(gradients[unit], self._left[rows].T, self._right[rows], add=add)


def _two(side: torch.Tensor, start: int, size: int, distance: int) -> torch.Tensor:
    """Return positions of two units, (2, size, width), without a copy."""
    along, across = side.stride()
    # The two units' rows as a batch: one view whose first stride leads from unit to unit.
    shape, strides = (2, size, side.shape[1]), (distance * along, along, across)
    return side.as_strided(shape, strides, side.storage_offset() + start * along)


class _Vectors:
    """The gradients of a model's vectors, those of one length in one tensor.

    A large network has hundreds of biases and norms: one by one, each would take a dozen small
    kernels at the end of a chunk.
    """

    def __init__(self, buffers: Buffers, layout: Tensors, num_units: int) -> None:
        names_of: dict[int, list[str]] = {}
        for name, like in layout.items():
            if like.ndim == 1:
                names_of.setdefault(len(like), []).append(name)
        self._names, self._groups = list(names_of.values()), []
        self._places: dict[str, tuple[int, int]] = {}
        for number, (size, names) in enumerate(names_of.items()):
            like = layout[names[0]].new_empty(len(names), size)
            self._groups.append(buffers.take(f"vectors of {size}", num_units, like).zero_())
            self._places |= {name: (number, place) for place, name in enumerate(names)}
        self._waiting: list[dict[int, torch.Tensor]] = [{} for _ in self._groups]
        self._waiting_bytes = 0

    def add(self, name: str, term: Total, segments: Segments) -> None:
        """Take a term of a pass; it is added with those of other vectors, once they are many."""
        group, place = self._places[name]
        again = place in self._waiting[group]  # its layer is called twice
        if again or self._waiting_bytes > _WAITING:
            self.end_pass(segments)
        rows = self._waiting[group][place] = term.of_rows(self._groups[group].dtype)
        self._waiting_bytes += rows.nbytes

    def end_pass(self, segments: Segments) -> None:
        """Add what waits, of the pass of these segments."""
        self._waiting_bytes = 0
        for group, waiting in zip(self._groups, self._waiting, strict=True):
            if not waiting:
                continue
            places = sent(torch.tensor([*waiting]), group.device)
            rows = torch.stack([*waiting.values()], dim=1)
            for segment in segments:
                own = rows[segment.rows].view(segment.num_units, -1, *rows.shape[1:])
                group[segment.units].index_add_(1, places, own.sum(dim=1))
            waiting.clear()

    def drop(self, units: torch.Tensor) -> None:
        """Put zeros for these units."""
        for group in self._groups:
            group[units] = 0.0

    def squares(self) -> dict[str, torch.Tensor]:
        """Return each vector's squared norms, (units,) float64."""
        found: dict[str, torch.Tensor] = {}
        for names, group in zip(self._names, self._groups, strict=True):
            squares = block_squares(group.flatten(0, 1)).view(len(group), len(names))
            found |= dict(zip(names, squares.unbind(dim=1), strict=True))
        return found

    def weighted_sum(
        self, factors: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield Σ over units of factor × gradient; factors are (units,)."""
        for names, group in zip(self._names, self._groups, strict=True):
            own = torch.stack([factors[name] for name in names], dim=1)
            yield from zip(names, torch.einsum("un,uns->ns", own, group), strict=True)


class Materialised:
    """Collects the terms of one chunk; see `Gradients` in `gradient_terms.py`.

    The rows whose norms are taken are the rows that are added: the clip's margin is `norm_error`.
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
        self._vectors = _Vectors(buffers, layout, num_units)
        self._squares: dict[str, torch.Tensor] = {}
        self._changed: set[str] = set()
        self._rows: dict[str, list[tuple[Rows, Segments]]] = {}
        self._merged: dict[str, MergedRows] = {}
        self._chains: dict[str, Chain] = {}

    def start_pass(self, segments: Segments) -> None:
        """Set the units that the sequences of the following terms belong to."""
        if self._deferred.num_bytes > self._room:
            self._deferred.write(self._buffer)
        self._vectors.end_pass(self._segments)
        self._segments = segments
        self._num_passes += 1

    def __call__(self, name: str, term: Term) -> None:
        """Add one term of parameter `name`."""
        if isinstance(term, Rows):  # dense only if another term of the table is
            self._rows.setdefault(name, []).append((term, self._segments))
            self._changed.add(name)
            return
        passes = self._passes_of.setdefault(name, set())
        again = self._num_passes in passes
        passes.add(self._num_passes)
        if isinstance(term, Total):
            self._vectors.add(name, term, self._segments)
            return
        if term.chain is not None:
            self._chains[name] = term.chain
            self._changed.add(name)
        # A unit with all its sequences in this pass has its product at once, and its norm while the
        # product is in the cache, unless more is to come; others wait for their other passes.
        if self._segments.whole:
            term.into(self._buffer(name), self._segments, add=again)
            if again:
                self._changed.add(name)
            elif name not in self._changed and self._layout[name].is_cpu:
                self._take_squares(name)
        else:
            self._deferred.add(name, term, self._segments)
            self._changed.add(name)

    def _take_squares(self, name: str) -> None:
        """Take the squared norms of gradients while they are still in a CPU's cache."""
        if name not in self._squares:
            self._squares[name] = torch.zeros(self._num_units, dtype=torch.float64)
        for segment in self._segments:
            formed = self._dense[name][segment.units]
            self._squares[name][segment.units] = block_squares(formed.flatten(1))

    def _buffer(self, name: str, *, zero: bool = False) -> torch.Tensor:
        """Return the parameter's gradients; on the first call, on request, set to zero."""
        if name not in self._dense:
            taken = self._buffers.take(name, self._num_units, self._layout[name])
            self._dense[name] = taken.zero_() if zero else taken
        return self._dense[name]

    def squares(self) -> torch.Tensor:
        """Return squared norms, (units, parameters) float64; all terms must be in.

        Raises:
            NotCovered: a pass did not use a parameter, so its buffers hold anything.
        """
        for name, passes in self._passes_of.items():
            if len(passes) != self._num_passes:
                raise NotCovered(f"{name} (not every sequence uses it)")
        self._deferred.write(self._buffer)
        self._vectors.end_pass(self._segments)
        for name, chain in self._chains.items():
            for gradient in self._dense[name]:  # one unit at a time stays in the cache
                chain(gradient)
        for name, lookups in self._rows.items():
            self._look_up(name, lookups)
        of_vectors = self._vectors.squares()
        columns = [
            of_vectors[name] if name in of_vectors else self._square(name) for name in self._layout
        ]
        return torch.stack(columns, dim=1)

    def _look_up(self, name: str, lookups: list[tuple[Rows, Segments]]) -> None:
        if name not in self._dense:
            self._merged[name] = merged(lookups)
            return
        gradients = self._buffer(name, zero=True)
        for term, segments in lookups:
            term.into(gradients, segments, add=True)

    def _square(self, name: str) -> torch.Tensor:
        num_units = self._num_units
        if name in self._merged:
            return self._merged[name].squares(num_units)
        if name not in self._dense:  # nothing used it
            return torch.zeros(num_units, dtype=torch.float64, device=self._layout[name].device)
        if name in self._squares and name not in self._changed:
            return self._squares[name]
        return block_squares(self._dense[name].flatten(1))

    def drop(self, units: torch.Tensor) -> None:
        """Put zeros for these units: their NaN times a factor of 0 would be NaN."""
        self._vectors.drop(units)
        for gradients in self._dense.values():
            gradients[units] = 0.0
        for name, rows in self._merged.items():
            self._merged[name] = rows.without(units)

    def weighted_sum(self, factors: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield Σ over units of factor × gradient; `factors` is (units, parameters) float64."""
        narrow = factors.T.to(next(iter(self._layout.values())).dtype).contiguous()
        yield from self._vectors.weighted_sum(dict(zip(self._layout, narrow, strict=True)))
        for factor, (name, like) in zip(narrow, self._layout.items(), strict=True):
            if name in self._merged:
                yield name, self._merged[name].weighted_sum(factor)
            elif name in self._dense:
                yield name, sum_of_rows(factor, self._dense[name].flatten(1)).view(like.shape)


def materialised(
    model: OpenModel, num_bytes: int | None = None, tokens_per_unit: float | None = None
) -> BatchedEngine:
    """Return the engine that forms every unit's gradient; see `BatchedEngine`."""
    return BatchedEngine(model, Materialised, num_bytes=num_bytes, tokens_per_unit=tokens_per_unit)
