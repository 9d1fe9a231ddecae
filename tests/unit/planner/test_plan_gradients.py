"""Norms and signal of users' gradients, on gradients that were planted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedsim.clipping import FlatClip, NoClip
from fedsim.config import Config, with_settings
from fedsim.errors import ConfigError
from fedsim.execution import Keys, Task, Unit, Update
from fedsim.materials import Materials, load_materials
from fedsim.plan import TaskSpec
from fedsim.planner import user_gradients
from fedsim.planner.norms import NUM_USERS, Norms, PrivateNorms, coin_users, draws, random_users
from fedsim.planner.user_gradients import UserGradients
from fedsim.registry import resolve
from fedsim.sampling import Relation
from fedsim.seeding import stream
from fedsim.tensors import Tensors, l2_norm
from tests.conftest import small_config

DIMENSION = 400


class Planted:
    """User k's update is (k + 1) along axis 0 and 10 along an axis of its own."""

    averages_gradients: ClassVar[bool] = True
    along, own = 1.0, 10.0

    def __init__(self, _: Materials, *, group_size: int) -> None:
        self._group_size = group_size

    def unit(self, key: int, round: int) -> Unit:
        return self.units(np.array([key]), round)[0]

    def units(self, keys: Keys, round: int) -> list[Unit]:
        empty = torch.zeros((self._group_size, 2), dtype=torch.int64)
        return [Unit(int(key), empty, torch.full((self._group_size,), 2)) for key in keys]

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        values = torch.zeros(DIMENSION)
        values[0] = self.along * (unit.key + 1)
        values[1 + unit.key] = self.own / math.sqrt(self._group_size)
        return Update({"w": values}, 0.0, self._group_size)


@pytest.fixture
def planted(materials: Materials, monkeypatch: pytest.MonkeyPatch) -> UserGradients:
    monkeypatch.setattr(user_gradients, "resolve", lambda *_: Planted)
    users = np.arange(100, dtype=np.int64)
    return UserGradients(materials, TaskSpec(name="fedsgd"), users, {"w": torch.zeros(DIMENSION)})


def test_the_norms_are_the_users_norms(planted: UserGradients) -> None:
    wanted = [math.hypot(key + 1, 5.0) for key in range(100)]
    np.testing.assert_allclose(planted.norms(4), wanted, rtol=1e-6)
    assert planted.median_norm(4) == pytest.approx(math.hypot(50.5, 5.0), rel=1e-3)
    assert planted.num_parameters == DIMENSION


def test_the_signal_is_the_mean_without_what_users_have_for_themselves(
    planted: UserGradients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All share one direction of length 1; the mean of 100 users alone would say √2."""
    monkeypatch.setattr(
        Planted, "update", lambda self, _, unit, __: Update({"w": shared(unit.key)}, 0.0, 1)
    )
    assert planted.clipped_mean_norm(1, NoClip()) == pytest.approx(1.0, rel=1e-6)
    whole = math.hypot(1.0, 10.0)
    clipped = planted.clipped_mean_norm(1, FlatClip(l2_clip_norm=whole / 2))
    assert clipped == pytest.approx(0.5, rel=1e-6)


def shared(key: int) -> torch.Tensor:
    values = torch.zeros(DIMENSION)
    values[0], values[1 + key] = 1.0, 10.0
    return values


def test_a_gradient_that_is_no_number_counts_as_the_longest_and_as_no_signal(
    planted: UserGradients, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = torch.full((DIMENSION,), math.nan)
    monkeypatch.setattr(Planted, "update", lambda *_: Update({"w": broken}, 0.0, 1))
    assert planted.median_norm(1) == math.inf
    assert planted.clipped_mean_norm(1, NoClip()) == 0.0
    with pytest.raises(ConfigError, match="median norm"):
        Norms(planted)(1)


def test_one_user_has_no_signal_to_tell_from_noise(planted: UserGradients) -> None:
    planted.users = planted.users[:1]
    assert planted.clipped_mean_norm(1, NoClip()) is None


def test_the_time_is_of_what_was_computed(planted: UserGradients) -> None:
    assert planted.seconds_per_gradient(2) is None
    planted.norms(2)
    assert planted.gradients[2] == 200
    assert planted.seconds_per_gradient(2) == planted.seconds[2] / 200


def test_real_users_have_the_norms_of_their_tasks_updates(materials: Materials) -> None:
    spec = TaskSpec(name="fedsgd", options={"group_size": 1, "selection": "longest"})
    users = np.array([0, 3, 5])
    task: Task = resolve("tasks", "fedsgd", "task")(materials, group_size=2, selection="longest")
    start = materials.model.initial_parameters()
    wanted = [l2_norm(task.update(start, task.unit(key, 0), 0).values) for key in users.tolist()]
    np.testing.assert_allclose(UserGradients(materials, spec, users).norms(2), wanted, rtol=1e-6)


@pytest.fixture
def config(speeches: Path) -> Config:
    return small_config(speeches)


def test_the_sample_is_random_users_and_the_same_again() -> None:
    users = random_users(stream(0, "planning"), 5_000)
    assert len(np.unique(users)) == NUM_USERS
    np.testing.assert_array_equal(users, random_users(stream(0, "planning"), 5_000))
    np.testing.assert_array_equal(random_users(stream(0, "planning"), 7), np.arange(7))
    assert not np.array_equal(users, random_users(stream(1, "planning"), 5_000))


def test_a_coin_is_flipped_by_everyone_alone() -> None:
    users = coin_users(stream(0, "planning"), 5_000, 5_000)
    assert abs(len(users) - NUM_USERS) < 5 * math.sqrt(NUM_USERS)
    fewer = coin_users(stream(0, "planning"), 4_000, 5_000)
    np.testing.assert_array_equal(fewer, users[users < 4_000])


def test_another_question_or_another_text_is_answered_by_other_draws(
    config: Config, materials: Materials, tmp_path: Path
) -> None:
    """With the same draws the difference of two answers would show what changed in between."""

    def first(config: Config, materials: Materials, *question: object) -> float:
        return float(draws(config, materials, *question)(1).random(1)[0])

    path = tmp_path / "texts.jsonl"
    source = Path(config.data.source).read_text(encoding="utf-8")
    path.write_text(source + '{"author": "new", "body": "the king"}\n', encoding="utf-8")
    data = config.data.model_copy(update={"source": str(path)})
    later = load_materials(config.seed, data, config.model, "cpu")
    found = [
        first(config, materials, 0.5, [1, 2]),
        first(config, materials, 0.6, [1, 2]),
        first(config, materials, 0.5, [1, 4]),
        first(config, later, 0.5, [1, 2]),
        first(config.model_copy(update={"seed": 1}), materials, 0.5, [1, 2]),
    ]
    assert len(set(found)) == len(found)
    assert first(config, materials, 0.5, [1, 2]) == found[0]
    secure = with_settings(config, ["privacy.noise='secure'"])
    assert first(secure, materials, 0.5) != first(secure, materials, 0.5)


def test_private_answers_are_paid_for_in_equal_parts(planted: UserGradients) -> None:
    norms = PrivateNorms(
        planted,
        unit="user",
        draws=lambda draw: stream(0, "planning", draw),
        noise="seeded",
        relation=Relation.ADD_OR_REMOVE,
        epsilon=6.0,
        group_sizes=[1, 4, 8],
    )
    assert norms.epsilon_each == 2.0
    assert norms(4) == pytest.approx(planted.median_norm(4), rel=0.4)
    assert norms(4) == norms(4)
    with pytest.raises(ValueError, match="16"):
        norms(16)  # nobody has paid for it
    said = norms.sentence(2.0, 1e-5, guaranteed=True)
    for part in (
        "holds for nobody who knows the seed",
        "ε = 6, δ = 0 together, and each is within 5 of the median in the order of the users'",
        "training is left ε = 2, δ = 1e-05",
        "(ε = 8, δ = 1e-05)",
    ):
        assert part in said
    assert "hypothetical" in norms.sentence(2.0, 1e-5, guaranteed=False)
