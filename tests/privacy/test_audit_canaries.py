"""Canary users in a real run: in the pool by their coins, bounded by the real clip, and seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.audit.canaries import CanaryExecutor, draw_canaries, flip_coins, with_canaries
from fedsim.audit.real_run import audit_run
from fedsim.clipping import Clip, FlatClip
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.round import run_round
from fedsim.sampling import CyclicSampling
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState
from fedsim.strategy import build_plan
from fedsim.tensors import Tensors, l2_norm
from tests.conftest import small_config

PER_LAYER = {"clip": {"kind": "per-layer", "l2_clip_norm": 0.3}}
ELS = {"name": "els", "cohort_size": None, "batch_size": 9}
TURNS = {"sampling": {"kind": "cyclic", "groups": 2}}
BALANCED = {"cohort_size": None, "sampling": {"kind": "balanced", "participations": 2}}


class Nobody:
    """The real users, none of whom moves anything; notes whom it was asked for."""

    def __init__(self) -> None:
        self.asked: list[Keys] = []

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        self.asked.append(cohort)
        return WeightedSum(WeightedSum.zero(parameters).values, float(len(cohort)), len(cohort))


STRATEGIES: dict[str, dict[str, Any]] = {
    "uls": {},
    "per-layer": PER_LAYER,
    "els": ELS,
    "balanced": BALANCED,
    "cyclic": TURNS,
    "cyclic els": ELS | TURNS,
}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_canarys_units_are_drawn_by_the_runs_coins_and_add_the_clip_bound(
    materials: Materials, speeches: Path, strategy: dict[str, Any]
) -> None:
    plan = build_plan(small_config(speeches, strategy=strategy), materials)
    parameters = materials.model.initial_parameters()
    canaries = draw_canaries(parameters, plan.clip, 20, seed=1)
    included = flip_coins(20, seed=1)
    planted, first, watch = with_canaries(plan, canaries, included)
    assert len(planted.pool) == len(plan.pool) + included.sum() * plan.units_per_user
    assert (planted.cost, planted.noise_stddev) == (plan.cost, plan.noise_stddev)
    assert planted.estimator == plan.estimator
    real = Nobody()
    executor = CanaryExecutor(real, canaries, plan, first)
    one = executor.clipped_sum(parameters, np.array([first]), plan.clip, 0)
    assert l2_norm(one.values) == pytest.approx(plan.clip.bound, rel=1e-6)
    assert (one.num_units, one.weight) == (1, 1.0)
    _, record = run_round(ServerState(0, parameters), planted, executor)
    cohort = planted.cohort(0)
    np.testing.assert_array_equal(real.asked[-1], cohort[cohort < first])
    np.testing.assert_array_equal(real.asked[-1], plan.cohort(0))  # real users' coins are as before
    assert record.num_units == len(cohort)
    assert watch.scores.any()
    if isinstance(plan.sampling, CyclicSampling):  # all units of a canary in one group
        drawn = [planted.cohort(round) for round in range(plan.sampling.rounds)]
        turns = [set((one[one >= first] - first) // plan.units_per_user) for one in drawn]
        assert not turns[0] & turns[1]


class Shrink(torch.optim.Optimizer):
    """Multiplies each parameter by a share."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ANN401
        for group in self.param_groups:
            for value in group["params"]:
                value.mul_(group["share"])


@dataclass(frozen=True)
class OwnStep(ServerOptimizer):
    """A plug-in's optimizer, with a field of its own."""

    share: float = 0.0

    def torch_optimizer(self, values: list[torch.Tensor]) -> torch.optim.Optimizer:
        return Shrink(values, {"lr": 1.0, "share": self.share})


def test_a_plugins_optimizer_steps_in_an_audit(materials: Materials, speeches: Path) -> None:
    plan = build_plan(small_config(speeches), materials)
    plan = replace(plan, optimizer=OwnStep("own", 0.1, share=0.5))
    parameters = materials.model.initial_parameters()
    canaries = draw_canaries(parameters, plan.clip, 4, seed=1)
    planted, first, watch = with_canaries(plan, canaries, flip_coins(4, seed=1))
    executor = CanaryExecutor(Nobody(), canaries, plan, first)
    after, _ = run_round(ServerState(0, parameters), planted, executor)
    for name, value in after.parameters.items():
        assert torch.equal(value, parameters[name] * 0.5)
    assert watch.scores.shape == (4,)


def test_without_noise_the_scores_are_the_coins(materials: Materials, speeches: Path) -> None:
    """Everybody drawn, hardly any noise: each canary that is in stands out, no other does."""
    config = small_config(
        speeches, strategy={"cohort_size": 24}, privacy={"noise_multiplier": 0.01}
    )
    plan = build_plan(config, materials)
    assert plan.sampling.probability == 1.0
    parameters = materials.model.initial_parameters()
    canaries, included = draw_canaries(parameters, plan.clip, 50, 3), flip_coins(50, 3)
    planted, first, watch = with_canaries(plan, canaries, included)
    run_round(ServerState(0, parameters), planted, CanaryExecutor(Nobody(), canaries, plan, first))
    np.testing.assert_array_equal(watch.scores > 0.0, included)


def test_coordinates_are_distinct_and_cover_the_layout() -> None:
    layout = {"a.weight": torch.zeros(3, 2), "b.weight": torch.zeros(4)}
    drawn = draw_canaries(layout, FlatClip(l2_clip_norm=1.0), 10, seed=0)
    assert len(set(drawn)) == 10
    assert {name for ((name, _),) in drawn} == set(layout)
    assert all(0 <= index < layout[name].numel() for ((name, index),) in drawn)


PRIVACY = {"epsilon": 6.0, "noise_multiplier": None, "delta": 1e-6}  # far below 1/canaries


@pytest.fixture(scope="module")
def config(speeches: Path) -> Config:
    return small_config(speeches, strategy={"cohort_size": 24, "rounds": 3}, privacy=PRIVACY)


WHOLE = {"cohort_size": None, "rounds": 4, "sampling": {"kind": "cyclic", "groups": 2}}
OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "balanced": (BALANCED | {"rounds": 5}, {}),
    "cyclic": (WHOLE, {}),
    "banded": (WHOLE, {"mechanism": "banded"}),
    "blt": (WHOLE | {"cohort_size": 11.0}, {"mechanism": "blt"}),
}


@pytest.mark.parametrize(("strategy", "privacy"), OTHERS.values(), ids=OTHERS)
def test_runs_where_each_user_draws_alone_are_bounded_too(
    speeches: Path, strategy: dict[str, Any], privacy: dict[str, Any]
) -> None:
    audit = audit_run(small_config(speeches, strategy=strategy, privacy=PRIVACY | privacy), 600)
    assert 0.5 < audit.bound.epsilon <= audit.claimed_epsilon


def test_a_real_run_is_bounded_below_its_claim_and_above_nothing(config: Config) -> None:
    audit = audit_run(config, 600)
    assert 0.5 < audit.bound.epsilon <= audit.claimed_epsilon
    assert audit.holds
    assert "ε" in audit.statement
    assert "δ" in audit.statement
    assert audit.to_json()["bound"]["delta"] == 1e-6


def test_a_run_with_a_fifth_of_its_noise_is_refuted(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim stays, the noise does not: canaries of one run tell."""
    honest = RoundPlan.noise_stddev.func  # type: ignore[attr-defined]
    monkeypatch.setattr(RoundPlan, "noise_stddev", property(lambda plan: honest(plan) / 5.0))
    assert not audit_run(small(config, 1.0), 900).holds  # of 14 seeds all show ε over 1.4


def small(config: Config, epsilon: float) -> Config:
    privacy = config.privacy.model_copy(update={"epsilon": epsilon})
    return config.model_copy(update={"privacy": privacy})


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"strategy": {"name": "non-private"}, "privacy": {"noise_multiplier": 0.0}}, "no ε"),
        ({"strategy": {"sampling": {"kind": "fixed-size"}}}, "fixed-size"),
        ({"privacy": {"relation": "replace-one"}}, "replace-one"),
    ],
)
def test_what_cannot_be_audited_so_is_refused(
    speeches: Path, sections: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        audit_run(small_config(speeches, **sections), 10)
    with pytest.raises(ConfigError, match="--canaries = 1"):
        audit_run(small_config(speeches), 1)
