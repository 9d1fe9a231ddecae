"""The clip of each round: what a schedule says, what an adaptive one learns, and nothing else."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.clip_policy import AdaptiveClip, ClipPolicy, ClipSchedule, ConstantClip
from fedsim.clipping import Clip, FlatClip, clip_from_json
from fedsim.estimators import FixedDenominator, WeightedSum
from fedsim.execution import Keys
from fedsim.materials import Materials
from fedsim.noise.tolerance import ROUNDING_TOLERANCE
from fedsim.plan import RoundPlan
from fedsim.runner.checkpoint import load_checkpoint, save_checkpoint
from fedsim.runner.training import train
from fedsim.sampling import PoissonSampling
from fedsim.seeding import noise_key
from fedsim.state import RoundRecord, ServerState
from fedsim.strategy import build_plan
from fedsim.tensors import Tensors, zeros_like
from tests.conftest import small_config
from tests.contracts.test_clips import CLIPS
from tests.unit.mechanism.test_plan import make_plan
from tests.unit.mechanism.test_round import same_state, start

NORMS = np.exp(np.random.default_rng(3).normal(1.0, 0.7, 300))


class Planted:
    """Unit `key` has an update of the norm NORMS[key]; remembers the clips that it was given."""

    def __init__(self) -> None:
        self.clips: list[Clip] = []

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        self.clips.append(clip)
        squares = torch.from_numpy(NORMS[cohort] ** 2)[:, None]
        factors = clip.batch_factors(["w"], squares)
        return WeightedSum(
            zeros_like(parameters, torch.float64),
            weight=0.5 * len(cohort),
            num_units=len(cohort),
            num_unclipped=int((factors == clip.unclipped_factor).sum()),
        )


def planted_plan(policy: ClipPolicy, **changes: Any) -> RoundPlan:  # noqa: ANN401
    """A plan over the 300 planted users, half of them a round; its first clip is 100."""
    fields = {
        "pool": np.arange(300),
        "sampling": PoissonSampling(0.5),
        "estimator": FixedDenominator(0.5, 300),
        "clip": FlatClip(l2_clip_norm=100.0),
        "clip_policy": policy,
    }
    return make_plan(**{**fields, **changes})


def adaptive(**changes: float) -> AdaptiveClip:
    usual = {"quantile": 0.5, "learning_rate": 0.2, "count_noise_stddev": 7.5}
    return AdaptiveClip(**{**usual, "expected_units": 150.0, **changes})


def records_of(plan: RoundPlan, rounds: int) -> tuple[ServerState, list[RoundRecord]]:
    seen: list[RoundRecord] = []
    state = train(start(), plan, Planted(), rounds, on_round=lambda _, record: seen.append(record))
    return state, seen


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [1.0, 0.775, 0.55, 0.325, 0.1, 0.1, 0.1]),
        ("exponential", [1.0, 10**-0.25, 10**-0.5, 10**-0.75, 0.1, 0.1, 0.1]),
    ],
)
def test_a_schedule_goes_from_the_clip_to_its_end_and_stays(
    kind: Any,  # noqa: ANN401
    expected: list[float],
) -> None:
    plan = planted_plan(ClipSchedule(kind, final_scale=0.1, rounds=4))
    executor = Planted()
    state = train(start(), plan, executor, 7)
    norms = [clip.norm for clip in executor.clips]
    assert norms == pytest.approx([100.0 * scale for scale in expected], rel=1e-12)
    constant = train(start(), planted_plan(make_plan().clip_policy), Planted(), 7)
    assert state.ledger == constant.ledger  # another clip, the same price


def test_the_noise_of_a_round_is_that_of_its_clip() -> None:
    plan = planted_plan(ClipSchedule("linear", final_scale=0.1, rounds=4))
    state = train(start(), plan, Planted(), 2)
    assert plan.at(state).clip == FlatClip(l2_clip_norm=100.0 * 0.55)
    assert plan.at(state).noise_stddev == pytest.approx(0.55 * plan.noise_stddev, rel=1e-12)
    assert plan.at(state).noise_stddev == pytest.approx(
        1.5 * 55.0 * (1.0 + ROUNDING_TOLERANCE) / 150.0, rel=1e-12
    )
    assert plan.at(state).cost == plan.cost
    assert plan.at(start()) is plan


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_every_clip_scales_and_travels_to_the_bit(clip: Clip) -> None:
    for scale in (0.1, 1.0 / 3.0, math.pi, 1e-9):
        scaled = clip.scaled(scale)
        assert scaled.norm == pytest.approx(scale * clip.norm, rel=1e-12)
        assert scaled.bound == pytest.approx(
            clip.bound if clip.kind == "normalised" else scale * clip.bound, rel=1e-12
        )
        assert clip_from_json(scaled.model_dump_json()) == scaled


@pytest.mark.parametrize(("num_unclipped", "grows"), [(150, False), (0, True)])
def test_too_many_within_shrink_the_clip_and_too_few_grow_it(
    num_unclipped: int, grows: bool
) -> None:
    total = WeightedSum({}, 0.0, num_units=150, num_unclipped=num_unclipped)
    policy = adaptive(count_noise_stddev=1e-9)
    after = policy.after(0, 2.0, total, noise_key(0, "clip", 0))
    assert after.released_share == pytest.approx(float(not grows), abs=1e-6)
    assert after.scale == pytest.approx(2.0 * math.exp(0.1 if grows else -0.1), rel=1e-6)


@pytest.mark.parametrize("quantile", [0.2, 0.5, 0.8])
def test_the_clip_comes_to_the_quantile_of_the_planted_norms(quantile: float) -> None:
    """From 100, far above all of them. Weights of 1/2 change nothing: a unit counts once."""
    _, records = records_of(planted_plan(adaptive(quantile=quantile)), 130)
    late = [record.clip_norm for record in records[70:]]
    assert records[0].clip_norm == 100.0
    below = [float((norm >= NORMS).mean()) for norm in late if norm is not None]
    assert len(below) == 60
    # A wandering of 0.02 in the share, itself a mean over 60 rounds.
    assert float(np.mean(below)) == pytest.approx(quantile, abs=0.04)


def test_zeros_for_ever_leave_a_clip_that_can_be_used() -> None:
    policy, scale = adaptive(learning_rate=50.0), 1.0
    total = WeightedSum({}, 0.0, num_units=150, num_unclipped=150)
    for round in range(5):
        scale = policy.after(round, scale, total, noise_key(0, "clip", round)).scale
    assert scale == pytest.approx(1e-9)
    assert FlatClip(l2_clip_norm=0.1).scaled(scale).bound > 0.0


def test_an_adaptive_run_goes_on_from_disk_as_if_nothing_had_been(tmp_path: Path) -> None:
    plan = planted_plan(adaptive())
    half = train(start(), plan, Planted(), 3)
    assert half.clip_scale != 1.0
    back = load_checkpoint(save_checkpoint(tmp_path, half, keep=1))
    assert same_state(back, half)
    whole, resumed = (train(state, plan, Planted(), 6) for state in (half, back))
    assert same_state(whole, resumed)


def clip_config(**keys: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"clip": {"l2_clip_norm": 0.5, **keys}}


def test_the_policies_of_a_config(speeches: Path, materials: Materials) -> None:
    schedule = {"kind": "linear", "final_l2_clip_norm": 0.05}
    config = small_config(speeches, strategy=clip_config(schedule=schedule))
    assert build_plan(config, materials).clip_policy == ClipSchedule("linear", 0.1, rounds=4)
    config = small_config(speeches, strategy=clip_config(adaptive={"quantile": 0.3}))
    # Six users a round: a twentieth of them, 0.3, would not pay for a multiplier of 1; 2 does.
    assert build_plan(config, materials).clip_policy == AdaptiveClip(0.3, 0.2, 2.0, 6.0)
    els = {"name": "els", "cohort_size": None, "batch_size": 60}
    weak = {"noise_multiplier": 0.1}
    config = small_config(speeches, strategy={**clip_config(adaptive={}), **els}, privacy=weak)
    policy = build_plan(config, materials).clip_policy
    assert isinstance(policy, AdaptiveClip)
    assert dataclasses.astuple(policy) == pytest.approx((0.5, 0.2, 3.0, 60.0))


def test_what_policies_say_of_themselves() -> None:
    """What a report prints; and whether rounds have clips of their own to print."""
    constant, schedule = ConstantClip(), ClipSchedule("linear", 0.5, rounds=1)
    adaptive = AdaptiveClip(0.0, 0.2, 2.0, 6.0)
    assert (constant.constant, schedule.constant, adaptive.constant) == (True, False, False)
    assert constant.describe() == {}
    assert schedule.describe() == {"schedule": "linear", "schedule_rounds": 1}
    assert adaptive.describe() == {
        "adapted_to_quantile": 0.0,
        "adaptation_rate": 0.2,
        "count_noise_stddev": 2.0,
    }
    assert AdaptiveClip(1.0, 0.2, 2.0, 6.0).quantile == 1.0
    with pytest.raises(ValueError, match="final_scale = inf"):
        ClipSchedule("linear", math.inf, rounds=3)
