"""Which units are computed together: alike in size, and as many as fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from clients.engines.cross_entropy import Batch
from clients.engines.uses import Segments
from fedsim.execution import Unit

# Sequences of a chunk times their length. More was no faster on a CPU, where 4096 tokens keep
# both cores busy; a GPU wants more at once.
CPU_TOKENS = 4096
GPU_TOKENS = 65536

# What a pass costs beside its tokens, as a number of tokens: measured with small models and one and
# two threads, and for each thread, since these shorten the tokens alone; a GPU waits for its host.
_CPU_PASS, _GPU_PASS = 150, 2048

# Bytes for a chunk: half for per-unit gradients, half for what a forward pass leaves behind.
CPU_BYTES = 2**31
GPU_SHARE = 0.8  # of what is free


@dataclass(frozen=True)
class Limits:
    """How much is computed at once.

    Attributes:
        tokens: of a pass: sequences times the longest one's length.
        units: of a chunk.
        num_bytes: for a chunk's gradients and for what it holds from pass to pass, together.
        bytes_per_unit: of a gradient.
    """

    tokens: int
    units: int
    num_bytes: int
    bytes_per_unit: int

    @property
    def smallest(self) -> bool:
        """Whether there is nothing left to halve."""
        return self.units == 1 and self.tokens == 1

    def halved(self) -> Limits:
        """Return limits for half the memory."""
        return replace(
            self,
            tokens=max(1, self.tokens // 2),
            units=max(1, self.units // 2),
            num_bytes=self.num_bytes // 2,
        )

    def room(self, num_units: int) -> int:
        """Return the bytes that a chunk of so many units may hold from pass to pass."""
        return max(0, self.num_bytes - num_units * self.bytes_per_unit)


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
    tokens = max(1, min(most, num_bytes // 2 // max(1, bytes_per_token)))
    return Limits(
        tokens=tokens,
        units=max(1, num_bytes // 2 // max(1, bytes_per_unit)),
        num_bytes=num_bytes - tokens * bytes_per_token,
        bytes_per_unit=bytes_per_unit,
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
    """Cut the units' sequences into passes of like length, where padding costs more than passes.

    A pass keeps to `max_tokens`, padding included, and has at least one sequence; within it
    sequences stand in the order of the units.
    """
    counts = torch.tensor([len(unit.lengths) for unit in units])
    unit_of = torch.arange(len(units)).repeat_interleave(counts)
    lengths = torch.cat([unit.lengths for unit in units])
    examples = [example for unit in units for example in unit.tokens]
    streams = all_streams(units)
    on_gpu = device.type == "cuda"
    pass_cost = _GPU_PASS if on_gpu else _CPU_PASS * torch.get_num_threads()
    for rows in _runs_of_like_length(lengths, max_tokens, pass_cost):
        tokens = torch.zeros(len(rows), int(lengths[rows].max()), dtype=torch.int64)
        for place, row in enumerate(rows.tolist()):
            length = int(lengths[row])
            tokens[place, :length] = examples[row][:length]
        of_units = torch.bincount(unit_of[rows], minlength=len(units))
        whole = bool(((of_units == 0) | (of_units == counts)).all())
        weights = 1.0 / counts[unit_of[rows]].double()
        batch = Batch(
            tokens.to(device),
            lengths[rows].to(device),
            weights.to(device, dtype),
            None if streams is None else streams[rows].to(device),
        )
        yield Pass(batch, Segments(of_units.tolist(), whole=whole))


def all_streams(units: Sequence[Unit]) -> torch.Tensor | None:
    """Return the dropout streams of all units' sequences, or None where a unit has none."""
    streams = [unit.streams for unit in units if unit.streams is not None]
    return torch.cat(streams) if streams and len(streams) == len(units) else None


def _runs_of_like_length(
    lengths: torch.Tensor, max_tokens: int, pass_cost: int
) -> Iterator[torch.Tensor]:
    """Yield the positions of each pass's sequences, in ascending order.

    Of all ways to cut the sequences, sorted by length, where the length changes, this takes the
    one that costs least: padded tokens, and `pass_cost` a pass.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    tops, counts = np.unique(-lengths.numpy(), return_counts=True)
    tops, ends = -tops, np.concatenate([[0], counts.cumsum()])
    costs, begins = np.zeros(len(ends)), np.zeros(len(ends), dtype=np.int64)
    for last in range(1, len(ends)):
        padded = (ends[last] - ends[:last]) * tops[:last]
        ways = costs[:last] + padded + pass_cost * np.ceil(padded / max_tokens)
        begins[last] = ways.argmin()
        costs[last] = ways.min()
    last, runs = len(tops), []
    while last:
        begin = int(begins[last])
        runs.append((order[ends[begin] : ends[last]], max(1, max_tokens // int(tops[begin]))))
        last = begin
    for run, most in reversed(runs):
        for rows in torch.split(run, most):
            yield rows.sort().values
