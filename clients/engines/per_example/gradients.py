"""What `materialised` and `ghost` each are: per-unit gradients of a chunk, in full or not."""

from __future__ import annotations

from typing import Protocol

import torch

from clients.engines.per_example.contributions import Segments, Use
from fedsim.tensors import Tensors


class Gradients(Protocol):
    """Per-unit gradients of a chunk, in full or not; called with each use as it appears."""

    def start_pass(self, segments: Segments) -> None:
        """Say to which units the sequences of the uses that follow belong."""
        ...

    def __call__(self, name: str, use: Use) -> None:
        """Take one use of parameter `name`."""
        ...

    def squares(self) -> torch.Tensor:
        """Return squared norms, (units, parameters) float64, once all uses are in.

        Of what the sum adds for a unit, at least, up to `norm_error` of a norm. A second call
        returns the same numbers, also after `drop`.
        """
        ...

    def coarse(self, factors: torch.Tensor, bound: float) -> torch.Tensor:
        """Return (units,) bool: those that may not be added in one product with others."""
        ...

    def drop(self, units: torch.Tensor) -> None:
        """Take these units out, so that nothing of theirs can reach the sum."""
        ...

    def weighted_sum(self, factors: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return Σ over units of factor × gradient; `factors` is (units, parameters) float64."""
        ...


class Method(Protocol):
    """Makes the `Gradients` of chunks, and keeps memory between them.

    Attributes:
        keeps_uses: whether a chunk's uses are held to its end, so that all its passes together
            must fit the memory and not each alone.
    """

    @property
    def keeps_uses(self) -> bool: ...  # noqa: D102

    def __call__(self, layout: Tensors, num_units: int, room: int) -> Gradients:
        """Begin a chunk that may hold `room` bytes from one pass to the next."""
        ...

    def bytes_per_unit(self, layout: Tensors) -> int:
        """Return what one more unit in a chunk takes."""
        ...

    def clear(self) -> None:
        """Give memory back."""
        ...
