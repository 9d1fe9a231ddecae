"""Per-unit gradients in full: one reused buffer per parameter, a row for every unit of a chunk.

A batched matrix product over units costs what the one product over all of them costs, and norms
and the clipped sum are two passes over memory. Where a unit's sequences are spread over passes,
what its products are made of is held, so that each is formed once. The gradient of a table of
which rows are only looked up stays a list of rows.
"""

from __future__ import annotations

import torch

from clients.engines.per_example.batched import BatchedEngine
from clients.engines.per_example.capture import NotCovered, OpenModel
from clients.engines.per_example.contributions import (
    Chain,
    MergedRows,
    Rows,
    Segments,
    Total,
    Use,
    merged,
)
from clients.engines.per_example.deferred_products import HeldProducts
from clients.engines.squares import block_squares, sum_of_rows
from fedsim.tensors import Tensors


class Materialised:
    """Collects the uses of one chunk; see `clients.engines.per_example.gradients.Gradients`.

    The rows whose norms are taken are the rows that are added: the clip's margin is `norm_error`.
    """

    def __init__(self, buffers: Buffers, layout: Tensors, num_units: int, room: int) -> None:
        self._buffers = buffers
        self._layout = layout
        self._num_units = num_units
        self._room = room
        self._held = HeldProducts(num_units)
        self._segments = Segments([], whole=True)
        self._num_passes = 0
        self._passes_of: dict[str, set[int]] = {}
        self._dense: dict[str, torch.Tensor] = {}
        self._squares: dict[str, torch.Tensor] = {}
        self._changed: set[str] = set()
        self._rows: dict[str, list[tuple[Rows, Segments]]] = {}
        self._merged: dict[str, MergedRows] = {}
        self._chains: dict[str, Chain] = {}
        self._all_squares: torch.Tensor | None = None

    def start_pass(self, segments: Segments) -> None:
        """Say to which units the sequences of the uses that follow belong."""
        if self._held.num_bytes > self._room:
            self._held.form(self._buffer)
        self._segments = segments
        self._num_passes += 1

    def __call__(self, name: str, use: Use) -> None:
        """Add one use of parameter `name`."""
        if isinstance(use, Rows):  # dense only if another use of the table is
            self._rows.setdefault(name, []).append((use, self._segments))
            self._changed.add(name)
            return
        passes = self._passes_of.setdefault(name, set())
        again = self._num_passes in passes
        passes.add(self._num_passes)
        if isinstance(use, Total):  # vectors are small: zeros first, then always added to
            use.into(self._buffer(name, zero=True), self._segments, add=True)
            return
        if use.chain is not None:
            self._chains[name] = use.chain
            self._changed.add(name)
        if self._segments.whole:
            use.into(self._buffer(name), self._segments, add=again)
            if again:
                self._changed.add(name)
            elif name not in self._changed:
                self._take_squares(name)
        else:
            self._held.add(name, use, self._segments)
            self._changed.add(name)

    def _take_squares(self, name: str) -> None:
        """Take the squared norms of what the pass has just formed, out of the cache."""
        if name not in self._squares:
            zeros = torch.zeros(self._num_units, dtype=torch.float64)
            self._squares[name] = zeros.to(self._layout[name].device)
        for segment in self._segments:
            formed = self._dense[name][segment.units]
            self._squares[name][segment.units] = block_squares(formed.flatten(1))

    def _buffer(self, name: str, *, zero: bool = False) -> torch.Tensor:
        """Return what holds the parameter's gradients; its first taker may ask for zeros."""
        if name not in self._dense:
            taken = self._buffers.take(name, self._num_units, self._layout[name])
            self._dense[name] = taken.zero_() if zero else taken
        return self._dense[name]

    def squares(self) -> torch.Tensor:
        """Return squared norms, (units, parameters) float64; all uses must be in.

        Raises:
            NotCovered: a pass did not use a parameter, so its buffers hold anything.
        """
        if self._all_squares is not None:  # chains change the gradients: once
            return self._all_squares
        for name, passes in self._passes_of.items():
            if len(passes) != self._num_passes:
                raise NotCovered(f"{name} (not every sequence uses it)")
        self._held.form(self._buffer)
        for name, chain in self._chains.items():
            for gradient in self._dense[name]:  # one unit at a time stays in the cache
                chain(gradient)
        for name, lookups in self._rows.items():
            self._look_up(name, lookups)
        columns = [self._square(name) for name in self._layout]
        self._all_squares = torch.stack(columns, dim=1)
        return self._all_squares

    def _look_up(self, name: str, lookups: list[tuple[Rows, Segments]]) -> None:
        if name not in self._dense:
            self._merged[name] = merged(lookups)
            return
        gradients = self._buffer(name, zero=True)
        for use, segments in lookups:
            use.into(gradients, segments, add=True)

    def _square(self, name: str) -> torch.Tensor:
        num_units = self._num_units
        if name in self._merged:
            return self._merged[name].squares(num_units)
        if name not in self._dense:  # nothing used it
            return torch.zeros(num_units, dtype=torch.float64, device=self._layout[name].device)
        if name in self._squares and name not in self._changed:
            return self._squares[name]
        return block_squares(self._dense[name].flatten(1))

    def coarse(self, factors: torch.Tensor, bound: float) -> torch.Tensor:
        """Return (units,) bool, none: what is added are the gradients that were clipped."""
        return torch.zeros(self._num_units, dtype=torch.bool, device=factors.device)

    def drop(self, units: torch.Tensor) -> None:
        """Put zeros for these units: their NaN times a factor of 0 would be NaN."""
        for gradients in self._dense.values():
            gradients[units] = 0.0
        for name, rows in self._merged.items():
            self._merged[name] = rows.without(units)

    def weighted_sum(self, factors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return Σ over units of factor × gradient; `factors` is (units, parameters) float64."""
        total = {}
        for column, (name, like) in enumerate(self._layout.items()):
            factor = factors[:, column].to(like.dtype)
            if name in self._merged:
                total[name] = self._merged[name].weighted_sum(factor)
            elif name in self._dense:
                total[name] = sum_of_rows(factor, self._dense[name].flatten(1)).view(like.shape)
        return total


class Buffers:
    """Memory that is kept from chunk to chunk: fresh pages cost more than the arithmetic saved."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def take(self, name: str, num_units: int, like: torch.Tensor) -> torch.Tensor:
        """Return (num_units, *shape) of `like`, with anything in it."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < num_units or kept.dtype != like.dtype:
            kept = self._kept[name] = like.new_empty(num_units, *like.shape)
        return kept[:num_units]

    def clear(self) -> None:
        """Give the memory back."""
        self._kept.clear()


class _Method:
    """Materialised gradients in buffers that outlive a chunk."""

    keeps_uses = False

    def __init__(self) -> None:
        self._buffers = Buffers()

    def __call__(self, layout: Tensors, num_units: int, room: int) -> Materialised:
        """Begin a chunk that may hold `room` bytes from one pass to the next."""
        return Materialised(self._buffers, layout, num_units, room)

    def bytes_per_unit(self, layout: Tensors) -> int:
        """Return the bytes of one unit's gradient."""
        return sum(value.nbytes for value in layout.values())

    def clear(self) -> None:
        """Give the buffers back."""
        self._buffers.clear()


def materialised(model: OpenModel, num_bytes: int | None = None) -> BatchedEngine:
    """Return the engine that forms every unit's gradient; see `BatchedEngine`."""
    return BatchedEngine(model, _Method(), num_bytes)
