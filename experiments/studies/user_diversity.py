"""How diverse one user's example gradients are, measured example by example."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fedsim.execution import Task, Unit
from fedsim.materials import Materials
from fedsim.registry import resolve
from fedsim.seeding import stream
from fedsim.server_optimizer import ServerOptimizer
from fedsim.tensors import Tensors, add_, l2_norm, zeros_like

_BATCH, _LEARNING_RATE = 32, 0.003


class UserNorms(NamedTuple):
    """Of one user at one G, over the first min(n, G) examples of a random order.

    Attributes:
        group_size: G.
        examples: min(n, G).
        root_mean_square: of the norms of the example gradients.
        mean: the norm of their mean.
    """

    group_size: int
    examples: int
    root_mean_square: float
    mean: float

    @property
    def ratio(self) -> float:
        """At least 1; 1 where all gradients are equal, √examples where they are orthogonal.

        Its square is the number of examples times the gradient diversity of Yin et al. 2018.
        """
        return self.root_mean_square / self.mean if self.mean > 0.0 else math.inf


def user_norms(
    materials: Materials, parameters: Tensors, user: int, group_sizes: Sequence[int]
) -> list[UserNorms]:
    """Return the user's norms at each G, ascending; a user has at least one example."""
    task = _task(materials, max(group_sizes))
    unit = task.unit(user, 0)
    total = zeros_like(parameters, torch.float64)
    ones = dict.fromkeys(total, 1.0)
    squares, found = 0.0, []
    order = stream(materials.seed, "planning", 1, user).permutation(len(unit.lengths)).tolist()
    for count, row in enumerate(order, start=1):
        width = int(unit.lengths[row])
        one = Unit(user, unit.tokens[row : row + 1, :width], unit.lengths[row : row + 1])
        gradient = task.update(parameters, one, 0).values
        add_(total, gradient, ones)
        squares += l2_norm(gradient) ** 2
        last = count == len(order)
        for size in group_sizes:
            if size == count or (last and size > count):
                norms = math.sqrt(squares / count), l2_norm(total) / count
                found.append(UserNorms(size, count, *norms))
    return found


def trained(materials: Materials, steps: int) -> Iterator[Tensors]:
    """Yield the parameters after each of some steps of Adam on random examples, not private."""
    task, optimizer = _task(materials, 1), ServerOptimizer("adam", _LEARNING_RATE)
    parameters: Tensors = materials.model.initial_parameters()
    state: Tensors = {}
    pool = materials.split.train_examples
    for step in range(steps):
        chosen = stream(materials.seed, "planning", 2, step).choice(pool, _BATCH, replace=False)
        tokens, lengths = materials.store.padded(np.sort(chosen))
        unit = Unit(0, torch.from_numpy(tokens), torch.from_numpy(lengths))
        gradient = task.update(parameters, unit, 0).values
        parameters, state = optimizer.step(parameters, gradient, state)
        yield parameters


def _task(materials: Materials, group_size: int) -> Task:
    task: Task = resolve("tasks", "fedsgd", "study")(materials, group_size=group_size)
    return task
