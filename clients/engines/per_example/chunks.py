"""Chunks: how many units and tokens are computed at once, from the memory there is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch

from fedsim.clients.engines.pass_shape import PassShape
from fedsim.clients.engines.per_example.packing import num_rows
from fedsim.execution import Unit

# Sequences of a chunk times their length. More was no faster on a CPU, where 4096 tokens keep
# both cores busy; a GPU wants more at once.
CPU_TOKENS = 4096
GPU_TOKENS = 65536

# Bytes for a chunk: half for per-unit gradients, half for what a forward pass leaves behind. It is
# enough for passes of 1,024 tokens of SmolLM2-135M with adapters: at 512, processors with AVX2 took
# a tenth longer.
CPU_BYTES = 9 * 2**28
GPU_SHARE = 0.8  # of what is free
# Of a chunk's bytes, where its passes have one size; and of what they leave, for gradients: the
# rest is for the sides of products of units that two passes share.
_OF_PASSES, _OF_UNITS = 0.6, 0.9
_WELL_FILLED = 0.9  # of a pass's rows
# Of passes of one size on a GPU: enough for an H100. All of them are filled, with empty rows.
PASS_TOKENS = 32768


@dataclass(frozen=True)
class Limits:
    """Limits on what is computed at once.

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


def public_budget(device: torch.device, share: float) -> int:
    """Return the bytes that a chunk may take of a share of `device`, whatever is free of it."""
    if device.type != "cuda":
        return CPU_BYTES
    return int(GPU_SHARE * share * torch.cuda.get_device_properties(device).total_memory)


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


def limits_for_passes(
    num_bytes: int,
    bytes_per_unit: int,
    bytes_per_token: int,
    length: int,
    device: torch.device,
    *,
    rows_per_unit: int | None = None,
) -> Limits:
    """Return limits that leave to units what a pass of the largest size does not take.

    On a GPU a pass is a hundred kernels a layer, whatever its size, so passes come first: the
    largest that the units of a chunk can fill. Where gradients are large and units bring little, a
    larger one would be empty rows for the most part.

    Args:
        num_bytes: of a chunk.
        bytes_per_unit: of a gradient.
        bytes_per_token: of a pass.
        length: of the longest row.
        device: that computes.
        rows_per_unit: that a unit brings at most; None: enough to fill a pass.
    """
    most = PASS_TOKENS if device.type == "cuda" else CPU_TOKENS
    most = min(most, int(_OF_PASSES * num_bytes) // max(1, bytes_per_token))
    rows = largest(most // length)
    while True:
        tokens = rows * length or max(1, most)
        left = num_bytes - tokens * bytes_per_token
        units = max(1, int(_OF_UNITS * left) // max(1, bytes_per_unit))
        if rows_per_unit is None or rows < 2 or _filled(units, rows_per_unit, rows) >= _WELL_FILLED:
            return Limits(tokens, units, num_bytes=left, bytes_per_unit=bytes_per_unit)
        rows = largest(rows - 1)


def _filled(units: int, each: int, rows: int) -> float:
    """Return how much of its passes of so many rows a chunk fills, by units with `each` rows."""
    step = rows // math.gcd(rows, each)  # so many units fill passes to the last row
    if 2 * (units // step * step) >= max(1, units):
        return 1.0
    return units * each / (math.ceil(units * each / rows) * rows)


def largest(most: int) -> int:
    """Return the rows of a pass: the largest of 1, 2, 3, 4, 6, 8, 12, … up to `most`, or 0.

    Users who bring a power of two of rows fill it without a rest.

    Examples:
        >>> [largest(most) for most in (0, 1, 3, 5, 11, 107, 256)]
        [0, 1, 3, 4, 8, 96, 256]
    """
    power = 1 << most.bit_length() >> 1
    return power * 3 // 2 if power > 1 and most >= power * 3 // 2 else power


def longest(unit: Unit) -> int:
    """Return the length of the unit's longest example."""
    return max(unit.sizes)


def in_order(units: Sequence[Unit], row_tokens: int) -> list[Unit]:
    """Return units with equal numbers of rows side by side, then by their tokens, then by key."""

    def size(unit: Unit) -> tuple[int, int, int]:
        return num_rows(unit, row_tokens), sum(unit.sizes), unit.key

    return sorted(units, key=size)


def num_tokens(unit: Unit, shape: PassShape) -> int:
    """Return at most how many tokens the unit's rows have, padding included."""
    return len(unit.sizes) * shape.padded(longest(unit))


def first_chunk(
    ordered: Sequence[Unit], limits: Limits, shape: PassShape, *, one_pass: bool
) -> list[Unit]:
    """Return as many of the first units as the limits allow, at least one.

    With `one_pass` all their sequences together keep to the limit of tokens; else a chunk takes
    several passes, and only the number of units is limited.
    """
    rows, length = 0, 1
    for index, unit in enumerate(ordered):
        rows, length = rows + len(unit.sizes), max(length, shape.padded(longest(unit)))
        too_long = one_pass and rows * length > limits.tokens
        if index > 0 and (index == limits.units or too_long):
            return list(ordered[: _filling(ordered[:index], shape)])
    return list(ordered)


def _filling(units: Sequence[Unit], shape: PassShape) -> int:
    """Return how many of the first units fill passes to the last row; all where none or few do.

    Where passes have one size, the rest of a chunk would be a pass with empty rows.
    """
    lengths = {shape.padded(size) for unit in units for size in set(unit.sizes)}
    if shape.sizes is None or len(lengths) > 1:
        return len(units)
    (size,) = (shape.num_rows(1, length) for length in lengths)
    rows = list(accumulate(len(unit.sizes) for unit in units))
    fill = [count for count, end in enumerate(rows, start=1) if end % size == 0]
    return fill[-1] if fill and 2 * fill[-1] >= len(units) else len(units)
