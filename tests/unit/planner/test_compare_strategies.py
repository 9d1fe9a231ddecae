"""What a plan weighs: candidates, group sizes, noise in the unit of the gradients."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.errors import ConfigError
from fedsim.materials import Materials
from fedsim.noise.tolerance import ROUNDING_TOLERANCE
from fedsim.planner.candidates import as_els, as_uls, candidate, enough, median_user_size
from fedsim.planner.compare_strategies import StrategyComparison, compare_strategies
from fedsim.planner.noise import Noise, condition_7, recommend
from fedsim.strategy import build_plan
from tests.conftest import small_config

PROMISE = {"epsilon": 6.0, "noise_multiplier": None}


def weighed(speeches: Path, materials: Materials, **sections: dict[str, Any]) -> StrategyComparison:
    sections = {**sections, "privacy": {**PROMISE, **sections.get("privacy", {})}}
    return compare_strategies(small_config(speeches, **sections), materials, budget=20.0)


@pytest.mark.parametrize(("declared", "said"), [(24, 0), (240, 1)])
def test_that_the_data_are_far_from_the_declared_number_is_said_once(
    speeches: Path, materials: Materials, caplog: pytest.LogCaptureFixture, declared: int, said: int
) -> None:
    weighed(speeches, materials, privacy={"declared_num_users": declared})
    line = "privacy.declared_num_users = 240, but the data have 24 to train on, users"
    assert sum(message.startswith(line) for message in caplog.messages) == said


def test_the_median_user_is_a_user(materials: Materials) -> None:
    size = median_user_size(materials)
    sizes = materials.split.user_sizes
    assert size in sizes
    assert (sizes < size).mean() <= 0.5 <= (sizes <= size).mean()


def test_a_group_grows_until_there_are_examples_enough(
    speeches: Path, materials: Materials
) -> None:
    config, sizes = small_config(speeches), materials.split.user_sizes
    for variant in (as_uls, as_els):
        for budget in (len(sizes), len(sizes) + 1, sizes.clip(max=4).sum(), sizes.sum()):
            found = enough(partial(variant, config), materials, float(budget), 1)
            assert sizes.clip(max=found).sum() >= budget
            assert found == 1 or sizes.clip(max=found // 2).sum() < budget
        with pytest.raises(ConfigError, match="all examples of all users"):
            enough(partial(variant, config), materials, sizes.sum() + 1.0, 1)


@pytest.mark.parametrize(
    "strategy",
    [
        {},
        {"clip": {"kind": "flat", "l2_clip_norm": 0.5, "normalise": True}},
        {"clip": {"kind": "per-layer", "l2_clip_norm": 0.5, "normalise": True}},
        {"user_weight_cap": 2, "estimator": {"kind": "clipped", "min_weight": 5.0}},
    ],
    ids=str,
)
def test_the_noise_is_in_the_unit_of_the_gradients(
    strategy: dict[str, Any], speeches: Path, materials: Materials
) -> None:
    """Whatever the clip: the plan's noise, multiplied by what a normalised clip divided by."""
    found = weighed(speeches, materials, strategy=strategy)
    for one in (found.uls, found.els):
        plan = build_plan(one.config, materials)
        norm, clip = one.noise.l2_clip_norm, one.config.strategy.clip
        assert clip.kind == found.config.strategy.clip.kind
        factor = norm if clip.normalise else 1.0
        assert one.noise.stddev == pytest.approx(plan.noise_stddev * factor)
    els = found.els.noise
    rounded = 1.0 + ROUNDING_TOLERANCE
    assert els.stddev == pytest.approx(els.noise_multiplier * els.l2_clip_norm * rounded / els.size)


def test_what_only_the_other_strategy_takes_is_left_out(
    speeches: Path, materials: Materials
) -> None:
    strategy = {"name": "els", "cohort_size": None, "batch_size": 9.0, "group_size": 3}
    declared = {"declared_num_examples": 100, "declared_num_users": 30}
    config = small_config(speeches, strategy=strategy, privacy=declared)
    assert as_els(config, 3).privacy.declared_num_examples == 100
    assert as_els(config, 4).privacy.declared_num_examples is None  # it was of another pool
    uls = as_uls(config, 2)
    assert (uls.strategy.expected_examples, uls.strategy.name) == (None, "uls")
    assert candidate(uls, materials, 20.0).plan.sampling.probability < 1.0


def test_the_doublings_go_by_what_was_measured(speeches: Path, materials: Materials) -> None:
    found = weighed(speeches, materials, strategy={"cohort_size": 1.0})
    assert found.uls.noise.group_size in found.norms.medians
    for step in found.doublings:
        group = step.point.group_size
        if np.isfinite(step.group_factor):
            medians = found.norms.medians
            assert step.group_factor == medians[2 * group] / medians[group]


def noise(strategy: str, size: float, sigma: float, norm: float) -> Noise:
    return Noise(strategy, 4, size, sigma, norm, sigma * norm / size)


@pytest.mark.parametrize(("els_norm", "chosen"), [(1.99, "els"), (2.0, "els"), (2.01, "uls")])
def test_the_quieter_one_is_recommended(els_norm: float, chosen: str) -> None:
    """σ_ELS L_ELS / B = σ_ULS L_ULS / M at L_ELS = 2: 4 · 2 / 64 = 2 · 1 / 16."""
    found = recommend(noise("els", 64.0, 4.0, els_norm), noise("uls", 16.0, 2.0, 1.0))
    assert found.strategy == chosen
    assert found.reason.startswith(f"{chosen}: ")
    assert found.gradients_per_user == 4.0
    assert found.norm_ratio == pytest.approx(2 * els_norm)
    assert ("≤ 4 gradients" in found.reason) == (chosen == "els")


@pytest.mark.parametrize("sigma", [0.7, 3.0, 7.9, 8.1, 40.0])
@pytest.mark.parametrize("group_size", [1, 8, 32])
@pytest.mark.parametrize("norm", [10.0, 2.5])
def test_condition_7_is_the_comparison_of_variances(
    sigma: float, group_size: int, norm: float
) -> None:
    els, uls = noise("els", 16.0 * group_size, sigma, 10.0), noise("uls", 16.0, 1.0, norm)
    assert condition_7(els, uls) == (els.variance / uls.variance <= 1.0)


def test_the_sentence_on_the_planned_rate_names_the_schedule(
    speeches: Path, materials: Materials
) -> None:
    for kind in ("constant", "linear"):
        plan = weighed(speeches, materials, server={"schedule": {"kind": kind}})
        assert plan.rate is not None
        assert f"of SGD with a {kind} schedule" in plan.rate.sentence
        assert plan.planned.server.schedule == plan.config.server.schedule
