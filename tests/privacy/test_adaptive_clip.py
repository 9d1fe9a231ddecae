"""An adaptive clip's two releases together cost what the noise multiplier says, and no less."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.clip_policy import AdaptiveClip
from fedsim.clipping import Clip
from fedsim.estimators import ClippedDenominator, Estimator, FixedDenominator, WeightedSum
from fedsim.materials import Materials
from fedsim.noise.tolerance import ROUNDING_TOLERANCE
from fedsim.plan import RoundPlan
from fedsim.runner.summary import privacy_block
from fedsim.sampling import PoissonSampling
from fedsim.seeding import noise_key
from fedsim.state import ServerState
from fedsim.strategy import build_plan
from tests.conftest import small_config
from tests.contracts.test_clips import CLIPS
from tests.privacy.test_released_noise import CASES, p_value, released
from tests.privacy.test_sensitivity import USER, User, moved, sums
from tests.unit.mechanism.test_plan import make_plan

Z, COUNT = 1.2, 0.75  # the noise on the estimate then is 1.2 / 0.6, two thirds more
SPLIT = 2.0
ESTIMATORS: dict[str, Estimator] = {
    "fixed": FixedDenominator(0.25, 10.0),
    "clipped": ClippedDenominator(0.25, 8.0),
}


def adaptive(quantile: float = 0.5) -> AdaptiveClip:
    return AdaptiveClip(quantile, 0.2, COUNT, expected_units=5.0)


def plan_of(clip: Clip, estimator: Estimator) -> RoundPlan:
    return make_plan(
        clip=clip,
        estimator=estimator,
        sampling=PoissonSampling(0.25),
        noise_multiplier=Z,
        clip_policy=adaptive(),
    )


def distance(neighbours: tuple[WeightedSum, WeightedSum], plan: RoundPlan) -> float:
    """How far the pairs of releases of two sums are apart, each part over its own noise."""
    without, with_one = neighbours
    update = moved(neighbours, plan.estimator) / plan.noise_stddev
    count = (shifted(with_one) - shifted(without)) / COUNT
    return math.hypot(update, count)


def shifted(summed: WeightedSum) -> float:
    """The count as released, noise taken away: from what the policy says without noise."""
    silent = AdaptiveClip(0.5, 1.0, 1e-200, expected_units=1.0)
    source = noise_key(0, "clip", 0)
    share = silent.after(0, 1.0, summed, source).released_share
    assert share is not None
    return share


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
@settings(max_examples=40)
@given(users=st.lists(USER, max_size=8), one=USER)
def test_no_unit_moves_the_pair_by_more_than_the_cost_says(
    clip: Clip, users: list[User], one: User
) -> None:
    neighbours = sums(users, one, clip)
    for estimator in ESTIMATORS.values():
        plan = plan_of(clip, estimator)
        assert distance(neighbours, plan) <= (1.0 / Z) * (1.0 + 1e-9), estimator


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_a_unit_attains_the_cost_so_that_an_unsplit_noise_would_be_too_little(clip: Clip) -> None:
    plan = plan_of(clip, ESTIMATORS["fixed"])
    attained = distance(sums([], ([1e20] * 6, 1.0), clip), plan)
    assert attained == pytest.approx(1.0 / Z, rel=ROUNDING_TOLERANCE)
    unsplit = math.hypot(1.0 / Z, 0.5 / COUNT)  # had the estimate kept the multiplier Z
    assert unsplit > 1.2 / Z


def test_both_noises_compose_to_the_noise_multiplier() -> None:
    """By dp_accounting: a count of sensitivity 1/2 and the updates, against Z alone."""
    split = adaptive().update_noise_multiplier(Z)
    assert split == pytest.approx(SPLIT, rel=1e-12)
    parts = [dp_accounting.GaussianDpEvent(split), dp_accounting.GaussianDpEvent(2.0 * COUNT)]
    epsilons = []
    for event in (dp_accounting.ComposedDpEvent(parts), dp_accounting.GaussianDpEvent(Z)):
        accountant = dp_accounting.pld.PLDAccountant()
        accountant.compose(event)
        epsilons.append(accountant.get_epsilon(1e-5))
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-3)


def adaptive_plan(
    speeches: Path, materials: Materials, strategy: dict[str, Any], noise: str
) -> tuple[RoundPlan, float]:
    """Return a plan and the noise that its report names."""
    clip = {"kind": "flat", "l2_clip_norm": 0.5, **strategy.get("clip", {})}
    config = small_config(
        speeches,
        strategy={**strategy, "clip": {**clip, "adaptive": {"count_noise_stddev": COUNT}}},
        server={"optimizer": "sgd", "learning_rate": 1.0},
        privacy={"noise": noise, "noise_multiplier": Z},
    )
    plan = build_plan(config, materials)
    report = privacy_block(config, plan, ServerState(0, {}), "", 24)
    assert report.noise_multiplier == plan.cost.noise_multiplier == Z
    assert report.clip["update_noise_multiplier"] == pytest.approx(SPLIT)
    assert any("noise multiplier 2 on the estimate" in line for line in report.assumptions)
    assert report.noise_stddev is not None
    return plan, report.noise_stddev


@pytest.mark.parametrize("noise", ["seeded", "secure"])
@pytest.mark.parametrize("strategy", CASES.values(), ids=CASES)
def test_the_estimates_noise_is_larger_by_the_split(
    speeches: Path, materials: Materials, strategy: dict[str, Any], noise: str
) -> None:
    plan, reported = adaptive_plan(speeches, materials, strategy, noise)
    rounded = 1.0 + ROUNDING_TOLERANCE
    assert reported == pytest.approx(SPLIT * plan.estimator.sensitivity(plan.clip.bound * rounded))
    sample = released(plan, nobody=True)
    assert p_value(sample, reported) > 1e-4
    assert p_value(sample, 1.1 * reported) < 1e-4
    assert p_value(sample, reported * Z / SPLIT) < 1e-4  # the multiplier without a split


@pytest.mark.parametrize(
    ("noise", "units", "unclipped"), [("seeded", 9, 2), ("secure", 0, 0)], ids=["nine", "nobody"]
)
def test_the_counts_noise_is_the_one_that_is_paid_for(
    speeches: Path, materials: Materials, noise: str, units: int, unclipped: int
) -> None:
    plan, _ = adaptive_plan(speeches, materials, {}, noise)
    summed = WeightedSum({}, num_units=units, num_unclipped=unclipped)
    states = (ServerState(round, {}) for round in range(20_000))
    shares = [plan.next_clip(state, summed).released_share for state in states]
    counts = 6.0 * (np.array(shares, dtype=np.float64) - 0.5) - (unclipped - units / 2)
    assert p_value(counts, COUNT) > 1e-4
    assert p_value(counts, 1.1 * COUNT) < 1e-4
    assert p_value(counts, 0.9 * COUNT) < 1e-4


def test_the_count_has_noise_of_its_own(speeches: Path, materials: Materials) -> None:
    """Not the estimate's: who sees both could subtract it."""
    plan, _ = adaptive_plan(speeches, materials, {}, "seeded")
    rounds = range(2000)
    nobody = WeightedSum({})
    count = [plan.next_clip(ServerState(round, {}), nobody).scale for round in rounds]
    noise = [float(plan.draws.noise(round).chunk("", 0).random(1)[0]) for round in rounds]
    coins = [float(plan.coins.of_units(round)[0]) for round in rounds]
    for first in (noise, coins):
        assert abs(np.corrcoef(np.log(count), first)[0, 1]) < 0.1
    again = plan.next_clip(ServerState(7, {}), nobody)
    assert again == plan.next_clip(ServerState(7, {}), nobody)
    other, _ = adaptive_plan(speeches, materials, {}, "secure")
    assert other.next_clip(ServerState(7, {}), nobody) != other.next_clip(
        ServerState(7, {}), nobody
    )
