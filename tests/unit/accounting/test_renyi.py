"""Rényi accountants: the fixed cohort size, whose noise is over what one user can add; orders."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsim.accounting.accountants import delta, epsilon
from fedsim.accounting.events import RoundCost
from fedsim.sampling import FixedSizeSampling, PoissonSampling, Relation


def gaussian_epsilon(noise_over_sensitivity: float, rounds: int, delta: float) -> float:
    """ε of unsampled Gaussians from their Rényi divergences α / (2 z²) alone.

    Canonne et al. 2020, Proposition 12, minimised over a dense grid of orders.
    """
    orders = np.exp(np.linspace(math.log(1.001), math.log(500.0), 200_000))
    divergences = rounds * orders / (2.0 * noise_over_sensitivity**2)
    conversion = np.log1p(-1.0 / orders) - np.log(delta * orders) / (orders - 1.0)
    return float(np.min(divergences + conversion))


@pytest.mark.parametrize(("noise", "rounds"), [(20.0, 100), (8.0, 1), (50.0, 10_000)])
def test_a_cohort_of_everybody_is_a_gaussian_at_half_the_noise(noise: float, rounds: int) -> None:
    """Replacing a user moves the sum by twice what adding one does."""
    cost = RoundCost(FixedSizeSampling(1000, 1000), noise)
    spent = epsilon(cost, rounds, 1e-6)
    right = gaussian_epsilon(noise / 2.0, rounds, 1e-6)
    assert right * (1.0 - 1e-9) <= spent <= right * (1.0 + 1e-2)  # dp_accounting's orders are few
    forgotten = gaussian_epsilon(noise, rounds, 1e-6)
    assert spent > 1.8 * forgotten


def test_a_fixed_size_costs_more_than_poisson_under_replace_one() -> None:
    """The Poisson PLD under replace-one is of the same sensitivity and rate, and tight."""
    fixed = epsilon(RoundCost(FixedSizeSampling(10, 1000), 3.0), 300, 1e-5)
    poisson = RoundCost(PoissonSampling(0.01), 3.0)
    assert fixed > epsilon(poisson, 300, 1e-5, "pld", Relation.REPLACE)


@pytest.mark.parametrize(("probability", "noise"), [(1.0, 5.0), (0.01, 1.0)])
def test_moments_are_orders_2_to_33_and_the_first_conversion(
    probability: float, noise: float
) -> None:
    """E (P/Q)^α under Q of the sampled Gaussian, as a binomial sum (Mironov et al. 2019, §3.3)."""
    rounds, target = 500, 1e-5
    candidates = []
    for order in range(2, 34):
        terms = [
            math.log(math.comb(order, k))
            + (k * math.log(probability) if k else 0.0)
            + ((order - k) * math.log1p(-probability) if k < order else 0.0)
            + k * (k - 1) / (2.0 * noise**2)
            for k in (range(order + 1) if probability < 1.0 else [order])
        ]
        divergence = rounds * float(np.logaddexp.reduce(terms)) / (order - 1.0)
        candidates.append(divergence + math.log(1.0 / target) / (order - 1.0))
    cost = RoundCost(PoissonSampling(probability), noise)
    assert epsilon(cost, rounds, target, "moments") == pytest.approx(min(candidates), rel=1e-9)


def test_moments_delta_inverts_epsilon() -> None:
    cost = RoundCost(PoissonSampling(0.02), 1.3)
    for target in (1e-3, 1e-6, 1e-12):
        spent = epsilon(cost, 200, target, "moments")
        assert delta(cost, 200, spent, "moments") == pytest.approx(target, rel=1e-9)
    assert delta(cost, 200, 0.0, "moments") == 1.0
