"""Concentration of users' gradients at the starting model, on the Shakespeare speakers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import FlatClip
from fedsim.config import parse_config
from fedsim.experiments.studies.chua_2024.asi_liu.filter import Matrix, distances
from fedsim.materials import load_materials
from fedsim.seeding import stream
from fedsim.tensors import l2_norm

SCORE = 0.8  # threshold of Algorithm 3, as a share of the number of users


class Measured(NamedTuple):
    """The concentration of some users' averaged gradients of `group_size` examples each.

    `clip_norm` is the median norm of the gradients, and each is clipped to it. `needed_radius` is
    the smallest τ with a score of at least 4N/5; `needed_ratio` is the radius over the clip norm.
    """

    num_users: int
    group_size: int
    clip_norm: float
    needed_radius: float
    needed_ratio: float


def measure(
    num_users: int, group_sizes: Sequence[int], pretraining_steps: int | None
) -> list[Measured]:
    """Return the concentration of the same users for each group size; seed 0, no training.

    Args:
        num_users: number of users, chosen at random.
        group_sizes: numbers of examples per user.
        pretraining_steps: steps of tiny-gpt; None for its default, 0 for a random starting model.
    """
    model = {} if pretraining_steps is None else {"pretraining_steps": pretraining_steps}
    config = parse_config({"model": model})
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    parameters = materials.model.initial_parameters()
    users = np.sort(stream(0, "sampling").permutation(materials.split.num_users)[:num_users])
    rows = []
    for group_size in group_sizes:
        task = AveragedGradient(materials, group_size=group_size)
        updates = [task.update(parameters, unit, 0).values for unit in task.units(users, 0)]
        norm = float(np.median([l2_norm(update) for update in updates]))
        clip = FlatClip(l2_clip_norm=norm)
        clipped = [torch.cat([v.flatten().float() for v in clip(u).values()]) for u in updates]
        radius = needed_radius(distances(torch.stack(clipped)))
        rows.append(Measured(num_users, group_size, norm, radius, radius / norm))
    return rows


def needed_radius(between: Matrix) -> float:
    """Return the smallest τ with 4/5 of all pairs (including self-pairs) within distance τ."""
    place = math.ceil(SCORE * between.size) - 1
    return float(np.partition(between.ravel(), place)[place])
