"""Norms of sampled users' gradients at the starting model, and of their clipped mean."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedsim.clipping import Clip
from fedsim.execution import Keys, Task, Unit
from fedsim.materials import Materials
from fedsim.plan import TaskSpec
from fedsim.registry import resolve
from fedsim.tensors import Tensors, add_, all_finite, l2_norm, zeros_like

_TOGETHER = 16  # users whose texts are looked up at once

Norms = npt.NDArray[np.float64]


@dataclass
class UserGradients:
    """The averaged gradients of a sample of users, by the task that a run of ULS would give them.

    With G examples a user they are what ULS clips; with one, an example's, what ELS clips.

    Attributes:
        materials: model and texts.
        task: a user's, whose option `group_size` is laid over.
        users: the sample, indices of the split.
        parameters: where the gradients are taken; the starting model by default.
        seconds: what the gradients at each G took on this machine, one user after the other.
        gradients: how many they were.
    """

    materials: Materials
    task: TaskSpec
    users: Keys
    parameters: Tensors = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict, init=False)
    gradients: dict[int, int] = field(default_factory=dict, init=False)
    _norms: dict[int, Norms] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        device = self.materials.model.device
        start = self.parameters or self.materials.model.initial_parameters()
        self.parameters = {name: value.to(device) for name, value in start.items()}

    @property
    def num_parameters(self) -> int:
        """Number of trained parameters, d."""
        return sum(value.numel() for value in self.parameters.values())

    def norms(self, group_size: int) -> Norms:
        """Return (users,) float64: ρ_u of Charles et al. 2024, App. I; remembered.

        The examples of a smaller G are among those of a larger one.
        """
        if group_size not in self._norms:
            found = [l2_norm(update) for _, update in self._updates(group_size)]
            self._norms[group_size] = np.array(found, dtype=np.float64)
        return self._norms[group_size]

    def median_norm(self, group_size: int) -> float:
        """Return L_ULS(G) as eq. 8 with the median estimates it; infinite or NaN norms count."""
        norms = np.where(np.isnan(self.norms(group_size)), math.inf, self.norms(group_size))
        return float(np.median(norms)) if len(norms) else math.nan

    def clipped_mean_norm(self, group_size: int, clip: Clip) -> float | None:
        """Return about |E w·clip(g)| over all users, or None for fewer than two users.

        |mean of the sample|² is too large by the spread over the number of users. What is
        returned is the root of (|Σ c_u|² - Σ |c_u|²) / (n (n - 1)), whose expectation is
        |E c|²; 0 where that is negative: not told from zero.
        """
        total = zeros_like(self.parameters, torch.float64)
        squares, count = 0.0, len(self.users)
        for unit, update in self._updates(group_size):
            if not all_finite(update):
                continue  # counts as zero, as it does in a round
            factors = {name: unit.weight * f for name, f in clip.factors(update).items()}
            add_(total, update, factors)
            squares += sum(
                (factors[name] * l2_norm({name: value})) ** 2 for name, value in update.items()
            )
        if count < 2:
            return None
        return math.sqrt(max(0.0, (l2_norm(total) ** 2 - squares) / (count * (count - 1))))

    def seconds_per_gradient(self, group_size: int) -> float | None:
        """Return the measured mean, or None where nothing was computed with this G."""
        count = self.gradients.get(group_size, 0)
        return self.seconds[group_size] / count if count else None

    def _updates(self, group_size: int) -> Iterator[tuple[Unit, Tensors]]:
        options: Mapping[str, Any] = {**self.task.options, "group_size": group_size}
        task: Task = resolve("tasks", self.task.name, "strategy.local.task")(
            self.materials, **options
        )
        for start in range(0, len(self.users), _TOGETHER):
            for unit in task.units(self.users[start : start + _TOGETHER], 0):
                began = time.perf_counter()
                update = task.update(self.parameters, unit, 0)
                took = time.perf_counter() - began
                self.seconds[group_size] = self.seconds.get(group_size, 0.0) + took
                self.gradients[group_size] = (
                    self.gradients.get(group_size, 0) + update.num_gradients
                )
                yield unit, update.values
