"""Which units are computed together: alike in size, and as many as fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from clients.engines.cross_entropy import Batch
from clients.engines.uses import Segments
from fedsim.execution import Unit

# Sequences of a chunk times their length. More was no faster on a CPU, where 4096 tokens keep
# both cores busy; a GPU wants more at once.
CPU_TOKENS = 4096
GPU_TOKENS = 65536

# A pass of so many tokens is efficient, and from there on takes no sequence under that share of
# its longest one's length.
_FULL_PASS, _LIKE = 1024, 0.85

# Bytes for a chunk: half for per-unit gradients, half for what a forward pass leaves behind.
CPU_BYTES = 2**31
GPU_SHARE = 0.8  # of what is free


@dataclass(frozen=True)
class Limits:
    """How much is computed at once.

    Attributes:
        tokens: of a pass: sequences times the longest one's length.
        units: of a chunk.
    """

    tokens: int
    units: int

    @property
    def smallest(self) -> bool:
        """Whether there is nothing left to halve."""
        return self.units == 1 and self.tokens == 1

    def halved(self) -> Limits:
        """Return limits for half the memory."""
        return replace(self, tokens=max(1, self.tokens // 2), units=max(1, self.units // 2))


def memory_budget(device: torch.device) -> int:
    """Return the bytes that a chunk may take on `device`."""
    if device.type != "cuda":
        return CPU_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(GPU_SHARE * (free + cached))


def limits_within(
    num_bytes: int, bytes_per_unit: int, bytes_per_token: int, device: torch.device
) -> Limits:
    """Return the largest limits that keep to half of `num_bytes` each for units and tokens."""
    most = GPU_TOKENS if device.type == "cuda" else CPU_TOKENS
    return Limits(
        tokens=max(1, min(most, num_bytes // 2 // max(1, bytes_per_token))),
        units=max(1, num_bytes // 2 // max(1, bytes_per_unit)),
    )


def longest(unit: Unit) -> int:
    """Return the length of the unit's longest example."""
    return int(unit.lengths.max())


def in_order(units: Sequence[Unit]) -> list[Unit]:
    """Return units with equal numbers of examples side by side, then by length, then by key."""
    return sorted(units, key=lambda unit: (len(unit.lengths), longest(unit), unit.key))


def num_tokens(unit: Unit) -> int:
    """Return the unit's number of tokens with its examples padded to the longest."""
    return len(unit.lengths) * longest(unit)


def first_chunk(ordered: Sequence[Unit], limits: Limits, *, one_pass: bool) -> list[Unit]:
    """Return as many of the first units as the limits allow, at least one.

    With `one_pass` all their sequences together keep to the limit of tokens; else a chunk takes
    several passes, and only the number of units is limited.
    """
    rows = length = 0
    for index, unit in enumerate(ordered):
        rows, length = rows + len(unit.lengths), max(length, longest(unit))
        too_long = one_pass and rows * length > limits.tokens
        if index > 0 and (index == limits.units or too_long):
            return list(ordered[:index])
    return list(ordered)


@dataclass(frozen=True, eq=False)
class Pass:
    """Sequences that go through the network together.

    Attributes:
        batch: the sequences, each with weight 1 over its unit's number of them.
        segments: whose they are.
    """

    batch: Batch
    segments: Segments


def passes(
    units: Sequence[Unit], max_tokens: int, device: torch.device, dtype: torch.dtype
) -> Iterator[Pass]:
    """Cut the units' sequences into passes of like length, so that little is padded.

    A pass keeps to `max_tokens`, padding included, and has at least one sequence; within it
    sequences stand in the order of the units.
    """
    counts = torch.tensor([len(unit.lengths) for unit in units])
    unit_of = torch.arange(len(units)).repeat_interleave(counts)
    lengths = torch.cat([unit.lengths for unit in units])
    examples = [example for unit in units for example in unit.tokens]
    seen = [False] * len(units)
    for rows in _runs_of_like_length(lengths, max_tokens):
        tokens = torch.zeros(len(rows), int(lengths[rows].max()), dtype=torch.int64)
        for place, row in enumerate(rows.tolist()):
            length = int(lengths[row])
            tokens[place, :length] = examples[row][:length]
        of_units = torch.bincount(unit_of[rows], minlength=len(units)).tolist()
        weights = 1.0 / counts[unit_of[rows]].double()
        batch = Batch(tokens.to(device), lengths[rows].to(device), weights.to(device, dtype))
        yield Pass(batch, Segments(of_units, seen))
        seen = [was or count > 0 for was, count in zip(seen, of_units, strict=True)]


def _runs_of_like_length(lengths: torch.Tensor, max_tokens: int) -> Iterator[torch.Tensor]:
    """Yield the positions of sequences of like length, each run in ascending order."""
    order = torch.argsort(lengths, descending=True, stable=True)
    start = 0
    while start < len(order):
        top = int(lengths[order[start]])
        stop = min(len(order), start + max(1, max_tokens // top))
        enough = start + max(1, _FULL_PASS // top)
        while stop > enough and int(lengths[order[stop - 1]]) < _LIKE * top:
            stop -= 1
        yield order[start:stop].sort().values
        start = stop
