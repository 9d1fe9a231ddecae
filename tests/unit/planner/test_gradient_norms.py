"""Median norms of users' gradients, on gradients that were planted."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedsim.errors import ConfigError
from fedsim.execution import Keys, Task, Unit, Update
from fedsim.materials import Materials
from fedsim.plan import TaskSpec
from fedsim.planner import gradient_norms
from fedsim.planner.gradient_norms import NUM_USERS, GradientNorms, random_users
from fedsim.registry import resolve
from fedsim.tensors import Tensors, l2_norm


class Planted:
    """User k's update has the norm hypot(k + 1, 10/√G)."""

    averages_gradients: ClassVar[bool] = True
    scale = 1.0

    def __init__(self, _: Materials, *, group_size: int) -> None:
        self._group_size = group_size

    def units(self, keys: Keys, round: int) -> list[Unit]:
        empty = torch.zeros((self._group_size, 2), dtype=torch.int64)
        return [Unit(int(key), empty, torch.full((self._group_size,), 2)) for key in keys]

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        values = torch.tensor([unit.key + 1.0, 10.0 / math.sqrt(self._group_size)])
        return Update({"w": self.scale * values}, 0.0, self._group_size)


@pytest.fixture
def planted(materials: Materials, monkeypatch: pytest.MonkeyPatch) -> GradientNorms:
    monkeypatch.setattr(gradient_norms, "resolve", lambda *_: Planted)
    return GradientNorms(materials, TaskSpec(name="fedsgd"), np.arange(100, dtype=np.int64))


def test_the_median_is_of_the_users_gradients(planted: GradientNorms) -> None:
    wanted = [math.hypot(key + 1, 5.0) for key in range(100)]
    np.testing.assert_allclose(planted.norms(4), wanted, rtol=1e-6)
    assert planted(4) == pytest.approx(np.median(wanted), rel=1e-6)


@pytest.mark.parametrize(("scale", "median"), [(math.nan, "inf"), (math.inf, "inf"), (0.0, "0.0")])
def test_a_median_that_is_no_clip_norm_is_refused(
    planted: GradientNorms, monkeypatch: pytest.MonkeyPatch, scale: float, median: str
) -> None:
    monkeypatch.setattr(Planted, "scale", scale)
    with pytest.raises(ConfigError, match=f"starting model is {median}"):
        planted(1)


def test_real_users_have_the_norms_of_their_tasks_updates(materials: Materials) -> None:
    spec = TaskSpec(name="fedsgd", options={"group_size": 1, "selection": "longest"})
    users = np.array([0, 3, 5])
    task: Task = resolve("tasks", "fedsgd", "task")(materials, group_size=2, selection="longest")
    start = materials.model.initial_parameters()
    wanted = [l2_norm(task.update(start, task.unit(key, 0), 0).values) for key in users.tolist()]
    np.testing.assert_allclose(GradientNorms(materials, spec, users).norms(2), wanted, rtol=1e-6)


def test_the_sample_follows_from_the_seed() -> None:
    users = random_users(0, 5_000)
    assert len(np.unique(users)) == NUM_USERS
    np.testing.assert_array_equal(users, random_users(0, 5_000))
    np.testing.assert_array_equal(random_users(0, 7), np.arange(7))
    assert not np.array_equal(users, random_users(1, 5_000))
