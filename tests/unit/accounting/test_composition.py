"""Composed PLDs keep their digits: against closed forms, and against exact convolution."""

from __future__ import annotations

import math
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import optimize, stats

from fedsim.accounting.accountants import delta, epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.methods.composition import ComposedPld
from fedsim.sampling import PoissonSampling, Relation

WIDTH = 0.25


def gaussian(noise: float) -> RoundCost:
    """Everybody every round: T rounds are one Gaussian mechanism of noise σ/√T, in closed form."""
    return RoundCost(PoissonSampling(1.0), noise)


@pytest.mark.parametrize(
    ("noise", "rounds", "at"),
    [
        (1.0, 1, 1e-12),
        (0.3, 100, 1e-6),
        (3.0, 100, 1e-16),
        (1000.0, 10**6, 1e-12),
        (1000.0, 10**6, 1e-6),
        (1000.0, 10**6, 0.3),
        (100.0, 10**6, 1e-10),
        (40.0, 1, 1e-9),
        (4.0, 10**6, 1e-9),
    ],
)
def test_many_rounds_at_tiny_deltas_against_the_closed_form(
    noise: float, rounds: int, at: float
) -> None:
    """A plain FFT's rounding errors, rounds * 1e-16 of the mass, would swamp most of these δ."""
    exact = dp_accounting.get_epsilon_gaussian(noise / math.sqrt(rounds), at)
    found = epsilon(gaussian(noise), rounds, at)
    assert exact <= found <= exact * (1 + 5e-4)


@pytest.mark.parametrize(("noise", "rounds"), [(3.0, 100), (1000.0, 10**4), (0.5, 3)])
def test_delta_against_the_closed_form(noise: float, rounds: int) -> None:
    total = noise / math.sqrt(rounds)
    for at in (1e-14, 1e-9, 1e-4, 0.01):
        where = dp_accounting.get_epsilon_gaussian(total, at)
        found = delta(gaussian(noise), rounds, where)
        assert at * (1 - 1e-6) <= found <= at * (1 + 1e-2)


def exact_delta(parts: list[tuple[dict[int, Fraction], Fraction, int]], epsilon_: float) -> float:
    """Convolve in rationals and sum (1 - e^(ε - L)) p(L) over L > ε, plus the infinite mass."""
    law, finite = {0: Fraction(1)}, Fraction(1)
    for masses, infinite, count in parts:
        for _ in range(count):
            convolved: dict[int, Fraction] = {}
            for a, p in law.items():
                for b, q in masses.items():
                    convolved[a + b] = convolved.get(a + b, Fraction(0)) + p * q
            law, finite = convolved, finite * (1 - infinite)
    above = [(k * WIDTH, float(p)) for k, p in law.items() if k * WIDTH > epsilon_]
    hockey = math.fsum(-math.expm1(epsilon_ - loss) * p for loss, p in above)
    return hockey + float(1 - finite)


def part(
    first: int, weights: list[int], infinite: Fraction, count: int
) -> tuple[tuple[PrivacyLossDistribution, int], tuple[dict[int, Fraction], Fraction, int]]:
    total = sum(weights)
    masses = {first + k: Fraction(w, total) * (1 - infinite) for k, w in enumerate(weights)}
    array = np.array([float(p) for p in masses.values()])
    pmf = pld_pmf.DensePLDPmf(WIDTH, first, array, float(infinite), True)
    return (PrivacyLossDistribution(pmf), count), (masses, infinite, count)


MIXED = [
    part(-2, [50, 3, 1, 0, 2, 0, 0, 1], Fraction(1, 10**15), 7),
    part(-1, [900, 80, 19, 1], Fraction(0), 11),
    part(0, [1, 10**6], Fraction(1, 10**18), 2),
]


@pytest.mark.parametrize("parts", [MIXED, MIXED[:1], MIXED[1:2], MIXED[2:], MIXED[1:]])
def test_different_rounds_against_exact_convolution(parts: list[tuple]) -> None:  # type: ignore[type-arg]
    composed = ComposedPld.of([ours for ours, _ in parts], WIDTH)
    law = [exact for _, exact in parts]
    for where in (0.0, 0.1, 0.5, 1.0, 2.3, 4.0, 6.1, 9.0):
        exact = exact_delta(law, where)
        assert composed.get_delta_for_epsilon(where) == pytest.approx(exact, rel=1e-7)
        if exact > max(side.infinite for side in composed.directions) * (1 + 1e-6):
            back = composed.get_epsilon_for_delta(exact * (1 + 1e-9))
            assert back == pytest.approx(where, abs=1e-5) or back < where


def test_no_delta_below_the_infinite_mass_is_resolved() -> None:
    composed = ComposedPld.of([MIXED[0][0]], WIDTH)
    assert max(side.infinite for side in composed.directions) == pytest.approx(7e-15)
    assert composed.get_epsilon_for_delta(6.9e-15) == math.inf
    assert composed.get_epsilon_for_delta(7.1e-15) < math.inf
    assert composed.get_delta_for_epsilon(1e3) == pytest.approx(7e-15)


def exact_delta_of_one_round(probability: float, noise: float, epsilon_: float) -> float:
    """Removing a user from one Poisson-sampled Gaussian round, whose loss has an inverse."""
    where = noise**2 * math.log1p(math.expm1(epsilon_) / probability) + 0.5
    under_q, under_p = stats.norm.sf(where / noise), stats.norm.sf((where - 1.0) / noise)
    mixed = (1.0 - probability) * under_q + probability * under_p
    return float(mixed - math.exp(epsilon_) * under_q)


@pytest.mark.parametrize("probability", [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.5])
@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_one_round_is_sound_however_small_the_epsilon(probability: float, noise: float) -> None:
    """A tilt too far, or a search among noise, once printed 0 for some of these."""
    for at in (1e-12, 1e-9, 1e-7, 1e-5, 1e-3):
        if exact_delta_of_one_round(probability, noise, 0.0) <= at:
            continue
        exact = optimize.brentq(
            lambda e, at=at: exact_delta_of_one_round(probability, noise, e) - at, 1e-12, 60.0
        )
        found = epsilon(RoundCost(PoissonSampling(probability), noise), 1, at)
        assert exact * (1 - 1e-6) <= found <= exact * 1.01


@pytest.mark.parametrize("units", [1, 8])
def test_below_what_a_pld_resolves_the_rate_itself_is_charged(units: int) -> None:
    """All components with the user in are left out: δ is the chance that one was drawn."""
    cost = RoundCost(PoissonSampling(1e-24), 1.0, units)
    assert delta(cost, 10, 0.0) == pytest.approx(1e-23 * units)
    assert epsilon(cost, 10, 1.01e-23 * units) == 0.0
    assert epsilon(cost, 10, 0.6e-23 * units) == math.inf


@pytest.mark.parametrize("relation", list(Relation))
def test_what_hardly_tells_anything_apart_is_answered_without_a_grid(relation: Relation) -> None:
    """Rates and noise at which a grid has no width: each once crashed, or took minutes."""
    for rate, noise, rounds, at in (
        (1e-20, 1.0, 10**6, 1e-10),
        (4.5e-19, 7.8, 10**6, 1e-12),
        (5e-9, 4.4e8, 10**6, 5.5e-6),
        (1.1e-19, 1e7, 10, 1.1e-20),
    ):
        assert epsilon(RoundCost(PoissonSampling(rate), noise), rounds, at, None, relation) == 0.0
    assert epsilon(RoundCost(PoissonSampling(1.1e-14), 3.3e6), 10**6, 7.7e-20) >= 0.0
