"""The price of a cap on the cohort: nothing where it is never met, and never less than declared."""

from __future__ import annotations

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import stats

from fedsim.accounting.accountants import delta, epsilon
from fedsim.accounting.events import RoundCost
from fedsim.sampling import PoissonSampling, Relation, TruncatedPoissonSampling

NOISE, PROBABILITY, ROUNDS, DELTA = 4.0, 0.02, 100, 1e-6


def spent(
    max_units: int,
    population: int,
    relation: Relation = Relation.ADD_OR_REMOVE,
    rounds: int = ROUNDS,
) -> float:
    sampling = TruncatedPoissonSampling(PROBABILITY, max_units, population)
    return epsilon(RoundCost(sampling, NOISE), rounds, DELTA, "pld", relation)


def uncapped(relation: Relation = Relation.ADD_OR_REMOVE) -> float:
    return epsilon(RoundCost(PoissonSampling(PROBABILITY), NOISE), ROUNDS, DELTA, "pld", relation)


@pytest.mark.parametrize("relation", Relation)
def test_a_cap_that_is_never_met_is_free(relation: Relation) -> None:
    assert spent(150, 500, relation) == pytest.approx(uncapped(relation), rel=1e-6)


@pytest.mark.parametrize("relation", Relation)
def test_a_cap_that_bites_costs(relation: Relation) -> None:
    """At most 13 of an expected 10: a user's coin now decides about another's place."""
    assert spent(13, 500, relation) > 1.05 * uncapped(relation)


def test_a_tighter_cap_costs_more() -> None:
    values = [spent(cap, 500) for cap in (13, 15, 18, 24)]
    assert values == sorted(values, reverse=True)
    assert values[-1] >= uncapped() * (1.0 - 1e-6)


@pytest.mark.parametrize("rounds", [1, ROUNDS])
@pytest.mark.parametrize("max_units", [5, 15])
def test_a_declared_upper_bound_on_the_population_is_safe(max_units: int, rounds: int) -> None:
    """Even where it is so large that the cap cuts every cohort.

    dp_accounting's own ε falls there: it takes the chance to be kept at the given population.
    """
    populations = [max_units, 200, 250, 400, 750, 1000, 1500, 3000, 12000]
    values = [spent(max_units, population, rounds=rounds) for population in populations]
    for fewer, more in itertools.pairwise(values):
        assert more >= fewer * (1.0 - 1e-3)
    assert values[-1] > 1.5 * values[0]


@pytest.mark.parametrize("relation", [Relation.ZERO_OUT, Relation.REPLACE])
@pytest.mark.parametrize("population", [100, 400, 750, 1500, 4000])
def test_never_below_dp_accounting_at_the_true_population(
    population: int, relation: Relation
) -> None:
    """Which takes the sum to move by 2 under every relation."""
    event = dp_event.TruncatedSubsampledGaussianDpEvent(population, PROBABILITY, 15, NOISE)
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, ROUNDS))
    assert spent(15, population, relation) >= accountant.get_epsilon(DELTA) * (1.0 - 1e-4)


@pytest.mark.parametrize(
    ("probability", "cap", "declared", "noise"),
    [
        (0.5, 1, 10, 0.3),
        (1.0, 1, 2, 0.3),
        (0.9, 1, 6, 1.0),
        (0.5, 2, 6, 0.5),
        (0.9, 3, 6, 0.3),
        (0.3, 5, 10, 0.5),
    ],
)
@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE, Relation.REPLACE])
def test_no_population_up_to_the_declared_one_costs_more(
    probability: float, cap: int, declared: int, noise: float, relation: Relation
) -> None:
    """All cohorts of a population are enumerated, all others on one side of the user.

    With a population of one nothing is ever cut: plain sampling at the full rate.
    """
    cost = RoundCost(TruncatedPoissonSampling(probability, cap, declared), noise)
    neighbour = -1 if relation is Relation.REPLACE else None
    for at in (0.0, 1.0, 3.0):
        stated = delta(cost, 1, at, "pld", relation)
        for population in {1, 2, cap, cap + 1, declared}:
            one = sums(population - 1, probability, cap, 1)
            other = sums(population - 1, probability, cap, neighbour)
            true = max(divergence(one, other, noise, at), divergence(other, one, noise, at))
            assert stated >= true * (1.0 - 1e-6)


def sums(others: int, probability: float, cap: int, user: int | None) -> dict[int, float]:
    """Probabilities of the sum of a capped cohort of others who add -1 and a user who adds so."""
    law: dict[int, float] = {}
    for drawn in range(others + 1):
        chance = float(stats.binom.pmf(drawn, others, probability))
        inside = 0.0 if user is None else probability * min(1.0, cap / (drawn + 1))
        for total, share in (
            (-min(drawn, cap), 1.0 - inside),
            ((user or 0) - min(drawn, cap - 1), inside),
        ):
            law[total] = law.get(total, 0.0) + chance * share
    return law


def divergence(left: dict[int, float], right: dict[int, float], noise: float, at: float) -> float:
    """The hockey-stick divergence of the noised sums, by the trapezium rule."""
    y = np.linspace(min(*left, *right) - 12.0 * noise, max(*left, *right) + 12.0 * noise, 20_001)
    one, other = (
        sum(p * stats.norm.pdf(y, mean, noise) for mean, p in law.items()) for law in (left, right)
    )
    return float(np.trapezoid(np.maximum(one - math.exp(at) * other, 0.0), y))
