"""The study of gradient diversity on planted gradients."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedsim.execution import Task, Unit, Update
from fedsim.experiments.studies.charles_2024 import gradient_diversity
from fedsim.experiments.studies.charles_2024.gradient_diversity import (
    needed_ratio,
    points,
    trained,
    user_norms,
)
from fedsim.materials import Materials
from fedsim.planner.noise import Noise, condition_7
from fedsim.registry import resolve
from fedsim.tensors import Tensors, l2_norm

SIZES = (1, 2, 4, 8)
LAYOUT = {"w": torch.zeros(16)}


class Planted:
    """A user of six examples; example i has a gradient of length 3 and cosine 1 - D to others."""

    averages_gradients: ClassVar[bool] = True
    diversity: ClassVar[float] = 0.0

    def unit(self, key: int, round: int) -> Unit:
        rows = torch.arange(6)
        return Unit(key, torch.stack([rows, rows], 1), torch.full((6,), 2))

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        (example,) = unit.tokens[:, 0].tolist()
        values = torch.zeros(16, dtype=torch.float64)
        values[15] = 3.0 * math.sqrt(1.0 - self.diversity)
        values[example] = 3.0 * math.sqrt(self.diversity)
        return Update({"w": values}, 0.0, 1)


@pytest.mark.parametrize("diversity", [0.0, 0.3, 1.0])
def test_planted_diversity_is_read_back(
    diversity: float, materials: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_diversity, "_task", lambda *_: Planted())
    monkeypatch.setattr(Planted, "diversity", diversity)
    row = user_norms(materials, LAYOUT, 0, SIZES)
    assert [norms.examples for norms in row] == [1, 2, 4, 6]
    assert [norms.group_size for norms in row] == list(SIZES)
    for norms in row:
        assert norms.root_mean_square == pytest.approx(3.0)
        wanted = 1.0 / math.sqrt(1.0 - diversity + diversity / norms.examples)
        assert norms.ratio == pytest.approx(wanted)
    measured = points("planted", [row] * 3, dict.fromkeys(SIZES, 1.0))
    assert [point.users for point in measured] == [3, 3, 3, 0]  # no user has eight
    assert measured[2].diversity == pytest.approx(diversity)
    assert measured[2].ratio_10 == measured[2].ratio_90 == pytest.approx(row[2].ratio)


def test_a_users_mean_gradient_is_the_tasks(materials: Materials) -> None:
    """With all of a user's examples there is nothing to choose."""
    user = int(np.argmax(materials.split.user_sizes))
    size = int(materials.split.user_sizes[user])
    start = materials.model.initial_parameters()
    task: Task = resolve("tasks", "fedsgd", "task")(materials, group_size=size)
    whole = task.update(start, task.unit(user, 0), 0).values
    (norms,) = user_norms(materials, start, user, [size])
    assert norms.mean == pytest.approx(l2_norm(whole), rel=1e-4)
    assert norms.ratio > 1.0


def test_the_needed_ratio_is_condition_7(
    materials: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On either side of it the condition answers otherwise."""
    sigmas = {1: 0.8, 4: 2.9}
    monkeypatch.setattr(
        gradient_diversity,
        "calibrate_noise_multiplier",
        lambda *, units_per_user, **_: sigmas[units_per_user],
    )
    monkeypatch.setattr(gradient_diversity, "COHORT", 5)
    ratio = needed_ratio(materials, 4)
    each = float(materials.split.user_sizes.clip(max=4).mean())
    uls = Noise("uls", 4, 5.0, sigmas[1], 1.0, sigmas[1] / 5.0)
    answers = [
        condition_7(Noise("els", 4, 5.0 * each, sigmas[4], near * ratio, 1.0), uls)
        for near in (0.999, 1.001)
    ]
    assert answers == [True, False]


def test_some_training_lowers_the_loss(materials: Materials) -> None:
    *_, last = trained(materials, 3)
    task: Task = resolve("tasks", "fedsgd", "task")(materials, group_size=8)
    users = range(materials.split.num_users)

    def loss(parameters: Tensors) -> float:
        return float(np.mean([task.update(parameters, task.unit(u, 0), 0).loss for u in users]))

    assert loss(last) < loss(materials.model.initial_parameters())
