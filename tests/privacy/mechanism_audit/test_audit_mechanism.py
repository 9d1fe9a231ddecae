"""The exact mechanism: strategies' plans, real rounds, a target in and out, ε bounded below."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fedsim.accounting.events import RoundCost
from fedsim.audit.canaries import planted_unit
from fedsim.audit.likelihood import log_ratio_of_rounds
from fedsim.clipping import Clip, FlatClip, NormalisedClip, PerLayerClip
from fedsim.estimators import ClippedDenominator
from fedsim.execution import Accumulator, Update
from fedsim.materials import Materials
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix, banded_matrix, buffered_matrix
from fedsim.sampling import BalancedSampling, CyclicSampling, PoissonSampling
from fedsim.strategy import build_plan
from tests.conftest import small_config
from tests.privacy.mechanism_audit.mechanism import DELTA, SETTINGS, Setting, audit_mechanism
from tests.privacy.mechanism_audit.replicas import Replicas, releases
from tests.unit.mechanism.test_plan import make_plan

ELS = {"name": "els", "cohort_size": None, "batch_size": 20, "group_size": 4}
STRATEGIES: dict[str, dict[str, Any]] = {
    "uls": {"cohort_size": 12},
    "uls per-layer": {"cohort_size": 12, "clip": {"kind": "per-layer", "l2_clip_norm": 0.3}},
    "uls balanced": {"cohort_size": None, "sampling": {"kind": "balanced", "participations": 2}},
    "uls banded": {"cohort_size": None, "sampling": {"kind": "cyclic", "groups": 2}},
    "els": ELS,
    "els normalised": ELS | {"clip": {"kind": "flat", "l2_clip_norm": 0.3, "normalise": True}},
}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_strategys_plan_keeps_its_claim_and_the_audit_comes_near(
    materials: Materials, speeches: Path, strategy: dict[str, Any]
) -> None:
    config = small_config(
        speeches,
        strategy=strategy,
        privacy={
            "epsilon": 4.0,
            "noise_multiplier": None,
            "delta": 1e-3,
            "mechanism": "banded" if strategy.get("sampling", {}).get("groups") else "independent",
        },
    )
    plan = build_plan(config, materials)
    audit = audit_mechanism(plan, config.strategy.rounds, delta=1e-3, trials=40_000)
    assert audit.holds
    assert audit.share > 0.55
    assert audit.claimed_epsilon == pytest.approx(4.0, rel=5e-3)


@pytest.mark.parametrize(
    "setting", SETTINGS, ids=lambda setting: f"{setting.strategy} {setting.sampling.kind}"
)
@pytest.mark.parametrize("target", [1.0, 8.0])
def test_half_of_the_noise_is_seen(setting: Setting, target: float) -> None:
    """The audit has power: the same claim with less noise than it needs is refuted."""
    plan = setting.plan(target, DELTA)
    honest = audit_mechanism(plan, setting.rounds, delta=DELTA, trials=60_000)
    assert honest.bound.epsilon <= target
    halved = dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier / 2)
    lied = audit_mechanism(halved, setting.rounds, delta=DELTA, trials=60_000)
    assert lied.bound.epsilon > min(target, 5.5)  # 45,000 trials cannot show much more


@pytest.mark.parametrize(
    "clip",
    [
        FlatClip(l2_clip_norm=0.7),
        NormalisedClip(clip=FlatClip(l2_clip_norm=0.7)),
        PerLayerClip(l2_clip_norms={"a": 0.3, "b": 0.4}),
    ],
    ids=lambda clip: clip.kind,
)
def test_replicas_are_what_the_accumulator_adds(clip: Clip) -> None:
    """Each unit's dense update, clipped and added one by one, gives the same sum."""
    plan = make_plan(clip=clip, units_per_user=3)
    replicas = Replicas(plan, 4)
    layout = {name: torch.zeros(8, dtype=torch.float64) for name in planted_unit(clip)}
    cohort = np.array([0, 1, 4, 5, 10])
    accumulator = Accumulator(layout, clip)
    for key in cohort:
        update = {name: torch.zeros(8, dtype=torch.float64) for name in layout}
        for value in update.values():
            value[key // 3] = 1e6
        accumulator.add(Update(update, 0.0, 1), 1.0)
    expected, found = accumulator.total(), replicas.clipped_sum(layout, cohort, clip, 0)
    for name in layout:
        torch.testing.assert_close(found.values[name], expected.values[name], rtol=1e-12, atol=0)
    assert (found.weight, found.num_units) == (expected.weight, expected.num_units)


def test_trials_of_one_round_are_independent_and_of_the_accounted_law() -> None:
    """Out: N(0, z²) per coordinate. In: with coins. Neighbouring targets do not correlate."""
    plan = make_plan(noise_multiplier=0.8, sampling=PoissonSampling(0.25))
    replicas = Replicas(plan, 20_000)
    law = stats.norm(0.0, 0.8)
    (released,) = [
        replicas._moved(release)
        for release in releases(replicas._plan, replicas, replicas._parameters, 1)
    ]
    inside, outside = released[:20_000], released[20_000:]
    assert stats.kstest(outside, law.cdf).pvalue > 1e-4
    of_mixture = 0.75 * law.cdf(inside) + 0.25 * law.cdf(inside - 1.0)
    assert stats.kstest(of_mixture, "uniform").pvalue > 1e-4
    assert stats.kstest(inside, law.cdf).pvalue < 1e-4
    for values in (inside, outside):
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4 / np.sqrt(20_000)


def test_the_likelihood_ratio_by_hand() -> None:
    cost = RoundCost(PoissonSampling(0.3), 1.7, units_per_user=2)
    x = np.array([-2.0, 0.4, 3.0])
    density = sum(w * stats.norm(k, 1.7).pdf(x) for k, w in enumerate([0.49, 0.42, 0.09]))
    np.testing.assert_allclose(
        log_ratio_of_rounds([x], cost), np.log(density / stats.norm(0, 1.7).pdf(x)), rtol=1e-12
    )


@pytest.mark.parametrize(("rounds", "seen"), [(6, 1), (6, 3), (6, 4), (6, 6), (5, 5), (5, 3)])
def test_the_ratio_of_balanced_rounds_by_hand(rounds: int, seen: int) -> None:
    """Over all ways to take part: the mean of what each way gives, for the rounds that are seen."""
    cost = RoundCost(BalancedSampling(rounds, 2), 1.3)
    moved = np.random.default_rng(1).normal(0.5, 1.5, (seen, 5))
    half = rounds // 2
    ways = [(one, other) for one in range(half) for other in range(half, rounds)]
    taken = np.array([[round in way for round in range(seen)] for way in ways])
    density = stats.norm(taken[:, :, None], 1.3).pdf(moved).prod(axis=1).mean(axis=0)
    np.testing.assert_allclose(
        log_ratio_of_rounds(list(moved), cost),
        np.log(density / stats.norm(0, 1.3).pdf(moved).prod(axis=0)),
        rtol=1e-12,
    )


@pytest.mark.parametrize(
    ("rate", "matrix"),
    [(0.3, banded_matrix(5, 2)), (1.0, buffered_matrix(5, 2, 2)), (0.3, INDEPENDENT)],
)
@pytest.mark.parametrize("seen", [1, 4, 5])
def test_the_ratio_of_cyclic_rounds_by_hand(rate: float, matrix: NoiseMatrix, seen: int) -> None:
    """Over both groups and all of a group's coins, by the density of what is released itself."""
    cost = RoundCost(CyclicSampling(5, 2, rate), 1.3)
    moved = np.random.default_rng(1).normal(0.5, 1.5, (seen, 6))
    inverse = matrix.amplification * np.linalg.inv(matrix.dense(seen))
    noise = stats.multivariate_normal(np.zeros(seen), 1.3**2 * inverse @ inverse.T)
    ratio = np.zeros(6)
    for group in range(2):
        turns = np.arange(group, seen, 2)
        for coins in itertools.product([0.0, 1.0], repeat=len(turns)):
            taken = np.zeros(seen)
            taken[turns] = coins
            chance = 0.5 * np.prod([rate if coin else 1 - rate for coin in coins])
            ratio += chance * np.exp(noise.logpdf(moved.T - taken) - noise.logpdf(moved.T))
    np.testing.assert_allclose(
        log_ratio_of_rounds(list(moved), cost, matrix), np.log(ratio), rtol=1e-9, atol=1e-9
    )


def test_what_replicas_are_not_made_for_is_refused() -> None:
    with pytest.raises(ValueError, match='need "fixed"'):
        Replicas(make_plan(estimator=ClippedDenominator(0.25, 8.0)), 4)
