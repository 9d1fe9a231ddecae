"""Two seeded runs of one seed draw the same for the same user, whatever else differs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.config import Config, with_settings
from fedsim.materials import Materials, load_materials
from fedsim.noise.gaussian import release_
from fedsim.plan import RoundPlan
from fedsim.registry import resolve
from fedsim.strategy import build_plan
from tests.conftest import small_config

ROUNDS = 4
SAMPLERS: dict[str, dict[str, Any]] = {
    "poisson": {},
    "truncated-poisson": {"sampling": {"kind": "truncated-poisson", "max_cohort_size": 5}},
    "fixed-size": {"sampling": {"kind": "fixed-size"}},
    "shuffled": {"sampling": {"kind": "shuffled"}},
    "balanced": {"sampling": {"kind": "balanced", "participations": 2}, "cohort_size": None},
    "cyclic": {"sampling": {"kind": "cyclic", "groups": 2}},
}
ELS = {"name": "els", "cohort_size": None, "batch_size": 9}
RUNS = {
    **SAMPLERS,
    "els": ELS,
    "els, in turns": {**ELS, "sampling": {"kind": "cyclic", "groups": 2}},
    "group-privacy": {**ELS, "name": "group-privacy"},
    "non-private": {"name": "non-private"},
}
CHANGES = {
    "learning rate": "server.learning_rate=0.5",
    "clip": "strategy.clip.l2_clip_norm=0.7",
    "noise": "privacy.noise_multiplier=2.5",
    "delta": "privacy.delta=1e-4",
    "engine": "executor.engine='loop'",
    "shards": "executor.shard_size=3",
}
MOVED_BY_ONE_MORE = {"truncated-poisson": 1, "fixed-size": 1, "shuffled": 2, "non-private": 1}
"""How many others may change a cohort when a user joins: by a cap, or a counted population."""


@pytest.fixture(autouse=True)
def _unpriced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for no ε, which takes seconds and decides no draw."""
    monkeypatch.setattr("fedsim.strategy._check_finite", lambda *_: None)


@dataclass(frozen=True)
class Drawn:
    """What a run draws in its rounds: per unit of a cohort its name and its examples; normals."""

    units: list[dict[bytes, bytes]]
    normals: list[torch.Tensor]
    held_out: set[bytes]


@lru_cache(maxsize=4)
def loaded(source: Path) -> Materials:
    config = small_config(source)
    return load_materials(config.seed, config.data, config.model, "cpu")


def config_of(source: Path, strategy: dict[str, Any]) -> Config:
    privacy: dict[str, Any] = {"noise_multiplier": 1.0}
    kind = strategy.get("sampling", {}).get("kind", "")
    if strategy.get("name") == "non-private":
        privacy = {"noise_multiplier": None, "delta": None, "noise": "seeded"}
    elif kind not in ("fixed-size", "shuffled"):
        privacy |= {"declared_num_users": 25, "declared_num_examples": 60}
    return small_config(source, strategy={"rounds": ROUNDS, **strategy}, privacy=privacy)


def drawn(config: Config, materials: Materials) -> Drawn:
    plan = build_plan(config, materials)
    task = resolve("tasks", plan.task.name, "task")(materials, **plan.task.options)
    store = materials.store
    held_out = store.example_keys[materials.split.held_out_examples].tolist()
    units, normals = [], []
    for round in range(ROUNDS):
        cohort = plan.cohort(round)
        made = task.units(cohort, round)
        texts = [b"/".join(row.numpy().tobytes() for row in unit.tokens) for unit in made]
        units.append(dict(zip(names(plan, cohort), texts, strict=True)))
        zeros = {"w": torch.zeros(1000, dtype=torch.float64)}
        deviation = plan.noise_stddev or 1.0
        noise = release_(zeros, 1.0, deviation, plan.draws.noise(round))[0]["w"]
        normals.append(noise / deviation)
    return Drawn(units, normals, {key.to_bytes(8, "little") for key in held_out})


def names(plan: RoundPlan, cohort: np.ndarray[Any, Any]) -> list[bytes]:
    assert plan.addresses is not None
    places = np.searchsorted(plan.pool, cohort)
    return [address.tobytes() for address in plan.addresses[places]]


def same_normals(one: Drawn, other: Drawn) -> bool:
    pairs = zip(one.normals, other.normals, strict=True)
    return all(torch.allclose(a, b, rtol=0, atol=1e-4) for a, b in pairs)


@pytest.mark.parametrize("strategy", RUNS.values(), ids=RUNS)
def test_runs_that_differ_in_settings_share_all_draws(
    speeches: Path, strategy: dict[str, Any]
) -> None:
    config, materials = config_of(speeches, strategy), loaded(speeches)
    before = drawn(config, materials)
    private = config.privacy.delta is not None
    for name, change in CHANGES.items():
        if name in ("clip", "noise", "delta") and not private:
            continue
        after = drawn(with_settings(config, [change]), materials)
        assert before.units == after.units, name
        assert same_normals(before, after), name
    other = drawn(config.model_copy(update={"seed": 1}), loaded_with(config, 1))
    assert before.units != other.units
    assert not same_normals(before, other)


def loaded_with(config: Config, seed: int) -> Materials:
    return load_materials(seed, config.data, config.model, "cpu")


@pytest.mark.parametrize("kind", RUNS)
def test_one_more_user_in_front_changes_no_draw_of_others(
    speeches: Path, tmp_path: Path, kind: str
) -> None:
    """Not even with the same text twice: a user's examples are known by their text and number."""
    more = tmp_path / "more.jsonl"
    newcomer = '{"author": "a newcomer", "body": "the queen shall ride"}\n' * 3
    more.write_text(newcomer + speeches.read_text(encoding="utf-8"), encoding="utf-8")
    found, plans = [], []
    for source in (speeches, more):
        config, materials = config_of(source, RUNS[kind]), loaded(source)
        plans.append(build_plan(config, materials))
        found.append(drawn(config, materials))
    addresses = [set(names(plan, plan.pool)) for plan in plans]
    assert addresses[0] < addresses[1]
    assert found[0].held_out <= found[1].held_out
    assert len(plans[1].pool) == len(addresses[1])
    assert same_normals(*found)
    for before, after in zip(found[0].units, found[1].units, strict=True):
        others = {name: text for name, text in after.items() if name in addresses[0]}
        assert len(before.keys() ^ others.keys()) <= 2 * MOVED_BY_ONE_MORE.get(kind, 0)
        assert all(others[name] == before[name] for name in others.keys() & before.keys())


def test_examples_of_one_text_have_coins_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "same.jsonl"
    rows = '{"author": "ann", "body": "the king"}\n' * 40 + '{"author": "bo", "body": "war"}\n' * 40
    path.write_text(rows, encoding="utf-8")
    config = config_of(path, {**ELS, "group_size": 30})
    plan = build_plan(config, loaded(path))
    assert plan.addresses is not None
    assert len(np.unique(plan.addresses)) == len(plan.pool) == 60
