"""A plan holds together or is not made; noise, cost and release follow from its fields."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.dp_event import MixtureOfGaussiansDpEvent
from scipy import stats

from fedsim.accounting.accountants import epsilon_of_composition
from fedsim.accounting.events import RoundCost
from fedsim.clipping import FlatClip, NoClip, NormalisedClip, PerLayerClip
from fedsim.estimators import ClippedDenominator, FixedDenominator
from fedsim.experiments.studies.chua_2024.asi_liu.filter import FilteredMean
from fedsim.materials import Materials
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.runner.summary import privacy_block
from fedsim.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    Relation,
    ShuffledSampling,
    TruncatedPoissonSampling,
)
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState
from fedsim.strategy import build_plan
from tests.conftest import Log, small_config

ELS: dict[str, Any] = {"name": "els", "cohort_size": None, "batch_size": 9}
NON_PRIVATE: dict[str, Any] = {"name": "non-private"}


def make_plan(**changes: Any) -> RoundPlan:  # noqa: ANN401
    """A plan over 20 users, five a round, that any field can be changed of."""
    fields: dict[str, Any] = {
        "strategy": "uls",
        "unit": "user",
        "pool": np.arange(100, 120),
        "sampling": PoissonSampling(0.25),
        "task": TaskSpec(name="fedsgd"),
        "clip": FlatClip(l2_clip_norm=2.0),
        "estimator": FixedDenominator(0.25, 20),
        "noise_multiplier": 1.5,
        "units_per_user": 1,
        "optimizer": ServerOptimizer("sgd", 1.0),
        "entropy": "seeded",
    }
    return RoundPlan(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"pool": np.array([], dtype=np.int64)}, "pool: is empty"),
        ({"pool": np.array([100, 102, 101, 100])}, "pool: has one user twice"),
        ({"pool": np.array([5, 5]), "unit": "example"}, "pool: has one example twice"),
        ({"sampling": PoissonSampling(0.2)}, "0.25: differs from sampling.probability = 0.2"),
        ({"estimator": ClippedDenominator(0.3, 8.0)}, "sampling_probability = 0.3: differs"),
        ({"units_per_user": 0}, "units_per_user = 0"),
        ({"accountant": "nobodys"}, "accountant = 'nobodys': known: "),
        ({"sampling": FixedSizeSampling(5, 20)}, "relation = 'add-or-remove-one': "),
        ({"sampling": ShuffledSampling(5, 20), "entropy": "secure"}, "entropy = 'secure' with"),
        (
            {"sampling": PoissonSampling(1.0), "estimator": FilteredMean(1.0, 20)},
            "filtered-mean.*a relation that is not replace-one",
        ),
        (
            {"units_per_user": 2, "estimator": ClippedDenominator(0.25, 8.0)},
            "estimator.kind = 'clipped'.*no proved sensitivity",
        ),
        (
            {"relation": Relation.REPLACE, "estimator": ClippedDenominator(0.25, 8.0)},
            "no proved sensitivity.*replace-one",
        ),
        (
            {"relation": Relation.ZERO_OUT, "estimator": ClippedDenominator(0.25, 8.0)},
            "no proved sensitivity.*zero-out-one",
        ),
        (
            {
                "sampling": TruncatedPoissonSampling(0.25, 6, 20),
                "estimator": ClippedDenominator(0.25, 8.0),
            },
            "no proved sensitivity.*displace another",
        ),
        (
            {"sampling": TruncatedPoissonSampling(0.25, 6, 20), "units_per_user": 2},
            "'truncated-poisson': no proved cost for 2 units.*poisson",
        ),
        (
            {"sampling": FixedSizeSampling(5, 20), "units_per_user": 2},
            "'fixed-size': no proved cost for 2 units.*poisson",
        ),
        ({"clip": NoClip()}, "noise_multiplier = 1.5 with a clip bound of inf"),
        ({"noise_multiplier": -1.0}, "noise_multiplier = -1.0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier = nan"),
        ({"noise_multiplier": math.inf}, "noise_multiplier = inf"),
    ],
)
def test_a_plan_that_cannot_be_kept_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_plan(**changes)


@pytest.mark.parametrize(
    ("changes", "stddev"),
    [
        ({}, 1.5 * 2.0 / 5.0),
        ({"noise_multiplier": 0.0}, 0.0),
        ({"noise_multiplier": 0.0, "clip": NoClip()}, 0.0),
        ({"estimator": ClippedDenominator(0.25, 8.0)}, 1.5 * 2 * 2.0 / 2.0),
        ({"clip": PerLayerClip(l2_clip_norms={"a": 3.0, "b": 4.0})}, 1.5 * 5.0 / 5.0),
        ({"clip": NormalisedClip(clip=FlatClip(l2_clip_norm=2.0))}, 1.5 * 1.0 / 5.0),
        ({"units_per_user": 4}, 1.5 * 2.0 / 5.0),  # noise is per unit; the cost knows the units
    ],
)
def test_noise_and_cost_derive_from_the_other_fields(
    changes: dict[str, Any], stddev: float
) -> None:
    plan = make_plan(**changes)
    assert plan.noise_stddev == pytest.approx(stddev * (1.0 + 2**-8), rel=1e-12)
    assert plan.cost == RoundCost(
        PoissonSampling(0.25), plan.noise_multiplier, changes.get("units_per_user", 1)
    )


def test_the_release_is_named_after_what_can_be_repeated() -> None:
    secure = [make_plan(seed=seed, entropy="secure").draws.release_id for seed in (3, 3, 4)]
    assert secure[0] == secure[1] != secure[2]  # of one run, though it cannot be repeated
    assert all(name.startswith("secure:") for name in secure)


def test_uls(speeches: Path, materials: Materials) -> None:
    plan = build_plan(small_config(speeches), materials)
    assert (plan.strategy, plan.unit, plan.units_per_user) == ("uls", "user", 1)
    assert plan.pool.tolist() == list(range(24))
    assert plan.sampling.probability == 6 / 24
    assert plan.estimator == FixedDenominator(6 / 24, 24)
    assert plan.clip == FlatClip(l2_clip_norm=0.5)
    assert plan.task.name == "fedsgd"
    assert plan.task.options["group_size"] == 3
    assert plan.cost.event == dp_accounting.PoissonSampledDpEvent(
        0.25, dp_accounting.GaussianDpEvent(1.0)
    )
    (sentence,) = plan.assumptions
    assert "24, was counted in the private data" in sentence
    assert "privacy.declared_num_users" in sentence


def test_uls_with_a_declared_number_of_users(speeches: Path, materials: Materials) -> None:
    config = small_config(speeches, privacy={"declared_num_users": 30})
    plan = build_plan(config, materials)
    assert len(plan.pool) == 24
    assert plan.sampling.probability == 6 / 30
    assert plan.estimator == FixedDenominator(6 / 30, 30)
    assert plan.assumptions == (
        "The number of users, 30, was declared public (privacy.declared_num_users).",
    )


@pytest.mark.parametrize(("declared", "said"), [(20, False), (30, False), (18, True), (31, True)])
def test_a_declared_number_that_is_far_from_the_data_is_said_to_who_runs_it(
    speeches: Path, materials: Materials, caplog: Log, declared: int, said: bool
) -> None:
    """Of 24: in the log alone, as it tells of the private number."""
    config = small_config(speeches, privacy={"declared_num_users": declared})
    plan = build_plan(config, materials)
    line = (
        f"privacy.declared_num_users = {declared}, but the data have 24 to train on, users "
        "held out by data.held_out_users not counted (the privacy guarantee does not protect this "
        f"number: do not publish it). The guarantee holds, but about {24 / declared:.3g} times as "
        "many users take part in a round as the noise is set for; correct the declared number if "
        "it is a mistake."
    )
    assert (line in caplog.messages) is said
    assert "24" not in " ".join(plan.assumptions)


def test_uls_with_weighted_users_divides_by_their_number(
    speeches: Path, materials: Materials
) -> None:
    config = small_config(speeches, strategy={"user_weight_cap": 4})
    plan = build_plan(config, materials)
    assert plan.estimator == FixedDenominator(6 / 24, 24)
    assert plan.task.options["user_weight_cap"] == 4


def test_els(speeches: Path, materials: Materials) -> None:
    plan = build_plan(small_config(speeches, strategy=ELS), materials)
    split = materials.split
    capped = int(split.user_sizes.clip(max=3).sum())
    p = 9 / capped
    assert capped < len(split.train_examples)  # the cap matters in this text
    assert (plan.strategy, plan.unit, plan.units_per_user) == ("els", "example", 3)
    assert plan.sampling.probability == p
    assert plan.estimator == FixedDenominator(p, capped)
    assert plan.task.name == "example-gradient"
    of_user = [np.isin(plan.pool, split.user_examples(user)).sum() for user in range(24)]
    assert of_user == split.user_sizes.clip(max=3).tolist()
    assert len(set(plan.pool.tolist())) == len(plan.pool) == capped
    (sentence,) = plan.assumptions
    assert f"pooled examples, {capped}, was counted" in sentence
    assert list(plan.dropped.values()) == [len(split.train_examples) - capped]


def test_els_costs_a_mixture(speeches: Path, materials: Materials) -> None:
    plan = build_plan(small_config(speeches, strategy=ELS), materials)
    event = plan.cost.event
    assert isinstance(event, MixtureOfGaussiansDpEvent)
    assert event.standard_deviation == 1.0
    assert list(event.sensitivities) == [0, 1, 2, 3]
    law = np.asarray(stats.binom.pmf(range(4), 3, plan.sampling.probability))
    assert list(event.sampling_probs) == pytest.approx(law.tolist(), rel=1e-12)


def test_els_with_a_declared_number_of_examples(speeches: Path, materials: Materials) -> None:
    config = small_config(speeches, strategy=ELS, privacy={"declared_num_examples": 90})
    plan = build_plan(config, materials)
    assert plan.sampling.probability == 0.1
    assert plan.estimator == FixedDenominator(0.1, 90)
    assert plan.assumptions == (
        "The number of pooled examples, 90, was declared public (privacy.declared_num_examples).",
    )
    said = " ".join(privacy_block(config, plan, ServerState(0, {}), "", 24).assumptions)
    assert "for n = 90 pooled examples, declared public, of at most as many users." in said
    assert "24" not in said  # users, whom nobody declared


def test_an_epsilon_calibrates_the_noise(speeches: Path, materials: Materials) -> None:
    config = small_config(
        speeches, privacy={"noise_multiplier": None, "epsilon": 3.0, "accountant": "rdp"}
    )
    plan = build_plan(config, materials)
    spent = epsilon_of_composition([(plan.cost, config.strategy.rounds)], 1e-3, "rdp")
    assert 2.99 < spent <= 3.0


@pytest.mark.parametrize(
    ("strategy", "unit", "size", "units_per_user"),
    [({}, "user", 24, 1), ({"cohort_size": None, "batch_size": 9}, "example", None, None)],
    ids=["users", "examples"],
)
def test_non_private(
    strategy: dict[str, Any],
    unit: str,
    size: int | None,
    units_per_user: int | None,
    speeches: Path,
    materials: Materials,
) -> None:
    plan = build_plan(small_config(speeches, strategy={**NON_PRIVATE, **strategy}), materials)
    sizes = materials.split.user_sizes
    size = size or int(sizes.sum())
    assert plan.unit == unit
    assert plan.units_per_user == (units_per_user or sizes.max())
    assert len(plan.pool) == size
    assert plan.clip == NoClip()
    assert (plan.noise_multiplier, plan.noise_stddev) == (0.0, 0.0)
    assert isinstance(plan.estimator, FixedDenominator)
    assert plan.estimator.denominator == pytest.approx(6 if unit == "user" else 9)
    assert plan.cost.event == dp_accounting.NonPrivateDpEvent()
