"""A round's release, and the state that the server's step changes, here or on workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import torch

from fedsim.tensors import Tensors, l2_norm


class Trained(NamedTuple):
    """The parts of `ServerState` that a step changes, in whole or one worker's share."""

    parameters: Tensors
    optimizer_state: Tensors
    average: Tensors


Step = Callable[[Trained, dict[str, torch.Tensor], bool], Trained]
"""From the state before, the gradient (used up) and whether to keep both, the state after."""


class Release:
    """The noised estimate of a round, in this process.

    Attributes:
        values: float64; a step uses them up.
        estimate_norm: L2 norm without the noise.
    """

    def __init__(self, values: dict[str, torch.Tensor], estimate_norm: float = 0.0) -> None:
        self.values = values
        self.estimate_norm = estimate_norm

    @cached_property
    def norm(self) -> float:
        """The L2 norm, to be read before the step."""
        return l2_norm(self.values)

    @cached_property
    def num_entries(self) -> int:
        """Total number of entries, to be read before the step."""
        return sum(value.numel() for value in self.values.values())

    def stepped(self, step: Step, trained: Trained, *, keep: bool) -> Trained:
        """Take a step in the process that has the release."""
        return step(trained, self.values, keep)
