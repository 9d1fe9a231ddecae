"""A budget of gradients becomes a cohort or a batch, counted on users of unequal size."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.materials import Materials
from fedsim.planner.budget import at_budget, largest_budget
from fedsim.runner.summary import expected_gradients
from fedsim.strategy import build_plan
from tests.conftest import Log, Patch, small_config

BUDGET = 20.0
ELS = {"name": "els", "cohort_size": None, "batch_size": 5.0}


def gradients(config: Config, materials: Materials) -> float:
    return expected_gradients(config, materials, build_plan(config, materials))


@pytest.mark.parametrize(
    "strategy",
    [
        {},
        {"group_size": 1},
        {"group_size": 100},
        {"group_size": 2, "local": {"task": "fedavg", "epochs": 2}},
        {"selection": "random-chunk"},
        {"sampling": {"kind": "truncated-poisson", "max_cohort_size": 24}},
        ELS,
        {**ELS, "group_size": 1},
        {"name": "non-private"},
        {"name": "non-private", "cohort_size": None, "batch_size": 5.0},
    ],
    ids=str,
)
def test_the_expected_gradients_are_the_budget(
    strategy: dict[str, Any], speeches: Path, materials: Materials
) -> None:
    config = at_budget(small_config(speeches, strategy=strategy), materials, BUDGET)
    assert gradients(config, materials) == pytest.approx(BUDGET, rel=1e-12)


@pytest.mark.parametrize("cap", [None, 6])
def test_the_coins_bring_what_is_expected(
    speeches: Path, materials: Materials, cap: int | None
) -> None:
    """By drawing cohorts, not by the formula that made the config: within five standard errors."""
    config = at_budget(small_config(speeches), materials, BUDGET)
    if cap is not None:  # less than the budget
        truncated = {"sampling": {"kind": "truncated-poisson", "max_cohort_size": cap}}
        with pytest.raises(ConfigError, match=r"max_cohort_size limits a round to 1\d\.\d+ grad"):
            at_budget(small_config(speeches, strategy=truncated), materials, BUDGET)
        raw = config.strategy.model_dump(exclude_none=True) | truncated
        config = small_config(speeches, strategy=raw)
    plan = build_plan(config, materials)
    expected = gradients(config, materials)
    assert (expected < 0.95 * BUDGET) is (cap is not None)
    sizes = materials.split.user_sizes.clip(max=config.strategy.group_size)
    drawn = np.array([sizes[plan.cohort(round)].sum() for round in range(2_000)])
    assert drawn.std() > 0
    assert abs(drawn.mean() - expected) < 5 * drawn.std() / np.sqrt(len(drawn))
    naive = config.strategy.group_size * len(plan.pool) * plan.sampling.probability
    assert naive > BUDGET + 1  # users with fewer examples do bring fewer here


def test_declared_numbers_are_what_a_size_is_a_share_of(
    speeches: Path, materials: Materials
) -> None:
    declared = {"declared_num_users": 48, "declared_num_examples": 400}
    for strategy in ({}, ELS):
        config = small_config(speeches, strategy=strategy, privacy=declared)
        assert gradients(at_budget(config, materials, BUDGET), materials) == pytest.approx(BUDGET)


def test_whole_cohorts_come_as_near_as_they_can(speeches: Path, materials: Materials) -> None:
    config = small_config(speeches, strategy={"sampling": {"kind": "fixed-size"}})
    met = at_budget(config, materials, BUDGET)
    size = met.strategy.expected_users
    assert size is not None and size == int(size)
    mean = materials.split.user_sizes.clip(max=3).mean()
    assert abs(gradients(met, materials) - BUDGET) <= mean / 2 + 1e-9


def test_passes_come_as_near_as_they_can(speeches: Path, materials: Materials) -> None:
    sampling = {"kind": "balanced", "participations": 1}
    config = small_config(
        speeches, strategy={"rounds": 12, "cohort_size": None, "sampling": sampling}
    )
    most = materials.split.user_sizes.clip(max=3).sum()
    for share, passes in ((0.26, 3), (0.9, 11), (0.01, 1)):
        met = at_budget(config, materials, share * most)
        assert met.strategy.sampling.model_dump()["participations"] == passes
        assert build_plan(met, materials).sampling.probability == passes / 12


@pytest.mark.parametrize(("mechanism", "share"), [("banded", 0.2), ("blt", 0.25)])
def test_groups_in_turn_meet_the_budget(
    mechanism: str, share: float, speeches: Path, materials: Materials
) -> None:
    sampling = {"kind": "cyclic", "groups": 3}
    config = small_config(
        speeches,
        strategy={"rounds": 12, "cohort_size": None, "sampling": sampling},
        privacy={"mechanism": mechanism},
    )
    most = materials.split.user_sizes.clip(max=3).sum()
    plan = build_plan(at_budget(config, materials, share * most), materials)
    assert plan.sampling.probability == pytest.approx(share)
    assert plan.matrix.kind == mechanism


def test_everybody_is_the_most(speeches: Path, materials: Materials) -> None:
    config = small_config(speeches)
    most = largest_budget(config, materials)
    assert most == materials.split.user_sizes.clip(max=3).sum()
    capped = {"sampling": {"kind": "truncated-poisson", "max_cohort_size": 1}}
    assert largest_budget(small_config(speeches, strategy=capped), materials) == most
    plan = build_plan(at_budget(config, materials, most), materials)
    assert plan.sampling.probability == 1.0
    with pytest.raises(ConfigError, match=rf"--budget = .*together give {most:g} gradients"):
        at_budget(config, materials, most * 1.01)


def test_no_accountant_is_asked_and_nothing_is_logged(
    speeches: Path, materials: Materials, monkeypatch: Patch, caplog: Log
) -> None:
    def never(*_: object, **__: object) -> float:
        raise AssertionError("calibrated")

    monkeypatch.setattr("fedsim.parts.calibrate_noise_multiplier", never)
    config = small_config(speeches, privacy={"epsilon": 1.0, "noise_multiplier": None})
    with caplog.at_level(logging.INFO):
        at_budget(config, materials, BUDGET)
    assert not caplog.records
    logging.getLogger("fedsim.strategies").warning("heard again")
    assert caplog.records
