"""The filter keeps its promise against runs chosen after looking; adding up losses does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import integrate, special, stats

from fedsim.accounting.accountants import accountant_of, epsilon_of_composition
from fedsim.accounting.budget import Budget
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.privacy_filter import ORDERS, RenyiFilter, best_order, price
from fedsim.sampling import FixedSizeSampling, PoissonSampling, Relation, TruncatedPoissonSampling
from tests.privacy.planted_bugs.two_runs import divergence

BOTH = Relation.ADD_OR_REMOVE
EPSILON, DELTA = 2.0, 1e-5
FIRST = RoundCost(PoissonSampling(1.0), 2.5)
SECONDS = [  # each all but spends what FIRST leaves of (2, 1e-5), composed tightly
    RoundCost(PoissonSampling(rate), noise)
    for rate, noise in [(1.0, 3.31), (0.1, 1.044), (0.01, 0.589), (1e-3, 0.391), (2e-4, 0.302)]
]
Array = npt.NDArray[np.float64]


def worst_divergence(seconds: Sequence[RoundCost]) -> float:
    """Exact δ at EPSILON of FIRST and then the second run that its release speaks for most."""
    mean = 0.5 / FIRST.noise_multiplier**2
    losses = mean + np.linspace(-12.0, 12.0, 100_001) / FIRST.noise_multiplier
    density = stats.norm.pdf(losses, mean, 1.0 / FIRST.noise_multiplier)
    best = np.max([divergence(cost, EPSILON - losses) for cost in seconds], axis=0)
    return float(integrate.trapezoid(density * best, losses))


def quietest_let_pass(lets_pass: Callable[[RoundCost], bool], rate: float) -> RoundCost:
    """The second run of this rate with the least noise that a rule lets pass."""
    low, high = 0.2, 20.0
    for _ in range(12):
        middle = math.sqrt(low * high)
        if lets_pass(RoundCost(PoissonSampling(rate), middle)):
            high = middle
        else:
            low = middle
    return RoundCost(PoissonSampling(rate), high)


def test_a_run_chosen_after_looking_keeps_the_budget_of_the_filter_and_not_that_of_a_sum() -> None:
    """The attack on adding up losses: each second run is within (2, 1e-5) if fixed in advance."""
    adding = Budget(EPSILON, DELTA)
    before = Ledger().charge(0, FIRST, "secure")

    def by_adding(cost: RoundCost) -> bool:
        return adding.affordable(before, cost, 1) == 1

    rule = RenyiFilter(EPSILON, DELTA, BOTH, best_order(EPSILON, DELTA, BOTH, [(FIRST, 1)]))

    def by_filter(cost: RoundCost) -> bool:
        return rule.pays_for([(FIRST, 1), (cost, 1)])

    assert all(by_adding(cost) for cost in SECONDS)
    assert max(worst_divergence([cost]) for cost in SECONDS) <= DELTA
    assert worst_divergence(SECONDS) > 2.0 * DELTA
    assert not any(by_filter(cost) for cost in SECONDS)
    filtered = [quietest_let_pass(by_filter, cost.sampling.probability) for cost in SECONDS]
    assert by_filter(filtered[0])
    assert 1e-7 < worst_divergence(filtered) <= DELTA


def mixture_moments(cost: RoundCost, order: float, *, adding: bool) -> tuple[float, float]:
    """Rényi divergence of the mixture of Gaussians by quadrature: without its last e^-50, and all.

    That mass is what a price states as the probability of an infinite loss.
    """
    k, z = cost.units_per_user, cost.noise_multiplier
    y = np.linspace(-12.0 * z - 3.0 * k, 12.0 * z + (order + 2.0) * k, 100_001)
    counts = np.arange(k + 1)
    weights = stats.binom.logpmf(counts, k, cost.sampling.probability)
    p = special.logsumexp(weights[:, None] + stats.norm.logpdf(y, counts[:, None], z), axis=0)
    q = stats.norm.logpdf(y, 0.0, z)
    upper, lower = (q, p) if adding else (p, q)
    tail = (
        stats.norm.logcdf(y, 0.0, z)
        if adding
        else special.logsumexp(weights[:, None] + stats.norm.logsf(y, counts[:, None], z), axis=0)
    )
    whole = np.exp(order * upper + (1.0 - order) * lower)
    cut, all_of_it = (
        float(np.log(integrate.trapezoid(values, y))) / (order - 1.0)
        for values in (np.where(tail > -50.0, whole, 0.0), whole)
    )
    return cut, all_of_it


@pytest.mark.parametrize("order", [1.5, 4.0, 10.0])
@pytest.mark.parametrize(
    "cost",
    [
        RoundCost(PoissonSampling(1.0), 3.0),
        RoundCost(PoissonSampling(0.1), 2.0),
        RoundCost(PoissonSampling(0.01), 1.0),
        RoundCost(PoissonSampling(0.05), 8.0, 6),
        RoundCost(PoissonSampling(0.3), 20.0, 4),
    ],
)
def test_a_price_is_the_dearer_directions_divergence(cost: RoundCost, order: float) -> None:
    sides = [mixture_moments(cost, order, adding=adding) for adding in (True, False)]
    cut, all_of_it = max(sides[0][0], sides[1][0]), max(sides[0][1], sides[1][1])
    found = price(cost, BOTH, order)
    assert found.infinite < 1e-21
    assert cut - 1e-12 <= found.renyi <= 1.002 * all_of_it + 1e-12


@pytest.mark.parametrize("order", [2.0, 8.0])
def test_prices_of_other_samplers_are_those_of_their_accountants(order: float) -> None:
    fixed = RoundCost(FixedSizeSampling(10, 1000), 1.5)
    expected, _ = accountant_of("rdp").renyi(fixed, Relation.REPLACE, order)
    assert price(fixed, Relation.REPLACE, order).renyi == expected
    plain = RoundCost(PoissonSampling(0.02), 2.0)
    truncated = RoundCost(TruncatedPoissonSampling(0.02, 40, 1000), 2.0)
    assert price(truncated, BOTH, order).renyi > price(plain, BOTH, order).renyi
    full = RoundCost(PoissonSampling(1.0), 4.0)  # replacing moves the sum by two bounds
    assert price(full, Relation.REPLACE, order).renyi == pytest.approx(order / 8.0, rel=2e-3)


def test_without_noise_nothing_is_paid_for() -> None:
    free = RoundCost(PoissonSampling(0.1), 0.0)
    assert price(free, BOTH, 4.0).renyi == math.inf
    assert not RenyiFilter(100.0, 0.1, BOTH, 4.0).pays_for([(free, 1)])


@pytest.mark.parametrize("order", [2.0, 5.0, 20.0])
def test_the_conversion_is_an_upper_bound(order: float) -> None:
    """Of the exact ε of a Gaussian; and what the budget buys converts to the budget."""
    for z in (1.0, 4.0, 20.0):
        costs = [(RoundCost(PoissonSampling(1.0), z), 3)]
        rule = RenyiFilter(8.0, 1e-5, BOTH, order)
        assert rule.converted(costs) >= epsilon_of_composition(costs, 1e-5)
        assert rule.pays_for(costs) == (rule.converted(costs) <= 8.0)


def test_infinite_losses_are_paid_for() -> None:
    """A δ so small that the PLDs' cut tails matter: not at any budget of ε."""
    cost = RoundCost(PoissonSampling(0.01), 5.0)
    assert RenyiFilter(1e4, 1e-18, BOTH, 4.0).pays_for([(cost, 1)])
    assert not RenyiFilter(1e4, 1e-18, BOTH, 4.0).pays_for([(cost, 100)])


def test_the_order_is_the_one_that_pays_most_often() -> None:
    for cost in (FIRST, RoundCost(PoissonSampling(0.001), 0.741)):
        chosen = best_order(2.0, 1e-5, BOTH, [(cost, 1)])

        def times(order: float, cost: RoundCost = cost) -> float:
            return RenyiFilter(2.0, 1e-5, BOTH, order).budget / price(cost, BOTH, order).renyi

        assert times(chosen) == max(times(order) for order in ORDERS)
    assert best_order(2.0, 1e-5, BOTH) == best_order(2.0, 1e-5, BOTH, [(FIRST, 7)]) == 10.0


@pytest.mark.parametrize("seed", range(8))
def test_no_sequence_of_choices_spends_more_than_the_budget(seed: int) -> None:
    """Random mechanisms, each offered once it is known what passed before.

    Checked by what the filter does not use: closed-form divergences, and the tight composition.
    """
    rng = np.random.default_rng(seed)
    epsilon, delta = float(rng.uniform(0.5, 8.0)), float(10.0 ** -rng.uniform(3.0, 8.0))
    rule = RenyiFilter(epsilon, delta, BOTH, best_order(epsilon, delta, BOTH))
    passed: list[tuple[RoundCost, int]] = []
    refused = 0
    while refused < 30:
        left = 1.0 - rule.spent(passed) / rule.budget
        noise = float(rng.lognormal(math.log(2.0 / max(left, 1e-2) ** 0.5 / epsilon), 1.0))
        offered = (RoundCost(PoissonSampling(1.0), noise), int(rng.integers(1, 4)))
        if rule.pays_for([*passed, offered]):
            passed.append(offered)
        else:
            refused += 1
    spent = sum(count * rule.order / (2.0 * cost.noise_multiplier**2) for cost, count in passed)
    to_delta = math.exp((rule.order - 1.0) * (spent - epsilon)) / rule.order
    assert passed
    assert to_delta * (1.0 - 1.0 / rule.order) ** (rule.order - 1.0) <= delta
    assert epsilon_of_composition(passed, delta) <= epsilon


def test_what_nobody_proved_is_refused() -> None:
    cost: Any = RoundCost(PoissonSampling(0.01), 1.0, units_per_user=4)
    with pytest.raises(ValueError, match="no proved bound under replace-one"):
        price(cost, Relation.REPLACE, 4.0)


@pytest.mark.parametrize("cost", [FIRST, SECONDS[1]])
@pytest.mark.parametrize("epsilon", [-1.0, 0.0, 0.5, 1.0])
def test_the_attacks_divergence_is_the_integral(cost: RoundCost, epsilon: float) -> None:
    q, z = cost.sampling.probability, cost.noise_multiplier
    y = np.linspace(-12.0 * z, 12.0 * z + 1.0, 100_001)
    without = stats.norm.pdf(y, 0.0, z)
    present = (1.0 - q) * without + q * stats.norm.pdf(y, 1.0, z)
    excess = np.maximum(present - math.exp(epsilon) * without, 0.0)
    found = divergence(cost, np.array([epsilon]))[0]
    assert found == pytest.approx(integrate.trapezoid(excess, y), rel=1e-4, abs=1e-12)
