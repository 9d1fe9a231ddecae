"""The fast PLD of a mixture of Gaussians: never below the exact divergence, and tight.

The exact hockey-stick divergences are computed here from their definition, with nothing of
fedsim's but the binomial law: P(Y > y) - e^ε Q(Y > y) for removing a user and
Q(Y <= y) - e^ε P(Y <= y) for adding one. Each is largest where the privacy loss crosses ε
(-ε for adding), so a y that is a little off gives a number below the divergence: a bound that
the PLD must respect in any case.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_mixture_gaussian_mechanism,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from fedsim.accounting.methods import mixture_pld as module
from fedsim.accounting.methods.mixture_pld import mixture_pld
from fedsim.sampling import binomial_probabilities
from tests.conftest import Patch

ROUNDING = 1e-14  # of probabilities that are near 1


class Exact:
    """The pair P = Σ_i weights_i N(i, noise²), Q = N(0, noise²), exact to float64."""

    def __init__(self, noise: float, weights: list[float]) -> None:
        self.noise = noise
        positive = np.flatnonzero(weights)
        self.shifts = positive.astype(np.float64)
        self.log_weights = np.log(np.asarray(weights)[positive])

    def loss(self, point: float) -> float:
        exponents = self.shifts * (point - 0.5 * self.shifts) / self.noise**2
        return float(special.logsumexp(self.log_weights + exponents))

    def log_tail(self, point: float, sign: float) -> float:
        """log P(Y > point) for sign -1, log P(Y <= point) for sign 1."""
        tails = special.log_ndtr(sign * (point - self.shifts) / self.noise)
        return float(special.logsumexp(self.log_weights + tails))

    def crossing(self, epsilon: float) -> float:
        """The point whose loss is epsilon; -inf where the loss is above it everywhere."""
        if self.shifts[0] == 0.0 and epsilon <= self.log_weights[0]:
            return -math.inf
        low, high = -1.0, 1.0
        while self.loss(low) > epsilon:
            low *= 2.0
        while self.loss(high) < epsilon:
            high *= 2.0
        return float(optimize.brentq(lambda y: self.loss(y) - epsilon, low, high, xtol=1e-12))

    def remove(self, epsilon: float) -> float:
        point = self.crossing(epsilon)
        log_p = self.log_tail(point, -1.0)
        log_q = float(special.log_ndtr(-point / self.noise))
        return math.exp(log_p) * -math.expm1(min(epsilon + log_q - log_p, 0.0))

    def add(self, epsilon: float) -> float:
        point = self.crossing(-epsilon)
        if math.isinf(point):
            return 0.0
        log_p = self.log_tail(point, 1.0)
        log_q = float(special.log_ndtr(point / self.noise))
        return math.exp(log_q) * -math.expm1(min(epsilon + log_p - log_q, 0.0))

    def width_of(self, points: int) -> float:
        """A grid of about so many points: the losses of P and Q reach about this far."""
        reach = float(self.shifts[-1]) + 11.0 * self.noise
        return (self.loss(reach) - self.loss(-11.0 * self.noise)) / points


def deltas(pld: PrivacyLossDistribution, epsilon: float) -> tuple[float, float]:
    """δ at ε of removing and of adding: E (1 - e^(ε - L))+, and all of the infinite losses."""
    remove, add = (_delta(pmf.to_dense_pmf(), epsilon) for pmf in (pld._pmf_remove, pld._pmf_add))
    return remove, add


def _delta(pmf: DensePLDPmf, epsilon: float) -> float:
    losses = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
    finite = pmf._probs @ -np.expm1(np.minimum(epsilon - losses, 0.0))
    return float(finite + pmf._infinity_mass)


def assert_dominates(pld: PrivacyLossDistribution, exact: Exact, epsilon: float) -> None:
    remove, add = deltas(pld, epsilon)
    assert remove >= exact.remove(epsilon) * (1.0 - 1e-9) - ROUNDING
    assert add >= exact.add(epsilon) * (1.0 - 1e-9) - ROUNDING


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(math.exp)


@settings(max_examples=150, deadline=None)
@given(
    noise=log_uniform(0.3, 20.0),
    units=log_uniform(1.0, 512.9).map(int),
    probability=log_uniform(1e-6, 1.0),
    width=log_uniform(1e-3, 1.0),
    share=st.floats(0.0, 1.2),
)
@example(noise=1.0, units=1, probability=0.01, width=1.0, share=0.1)
@example(noise=0.3, units=512, probability=0.9, width=1.0, share=1.0)
@example(noise=4.0, units=512, probability=0.01, width=0.01, share=0.02)
@example(noise=1.0, units=3, probability=1.0, width=0.1, share=0.0)
def test_an_upper_bound_of_the_exact_divergence_in_both_directions(
    noise: float, units: int, probability: float, width: float, share: float
) -> None:
    weights = binomial_probabilities(units, probability)
    exact = Exact(noise, weights)
    width = max(width, exact.width_of(3000))  # wider where a fine grid would take minutes
    pld = mixture_pld(noise, range(units + 1), weights, width)
    highest = exact.loss(units * probability + 6.0 * noise)
    for epsilon in (0.0, share * highest, highest):
        assert_dominates(pld, exact, epsilon)
    for pmf in (pld._pmf_remove.to_dense_pmf(), pld._pmf_add.to_dense_pmf()):
        assert np.all(pmf._probs >= 0.0)
        assert 1.0 - 1e-9 <= math.fsum(pmf._probs) + pmf._infinity_mass <= 1.0 + 1e-6


@pytest.mark.parametrize(
    ("noise", "units", "probability"),
    [(1.0, 1, 0.01), (0.5, 3, 0.1), (4.0, 32, 0.01), (20.0, 512, 0.05), (2.0, 4, 1.0)],
)
def test_tight_as_the_grid_gets_finer(noise: float, units: int, probability: float) -> None:
    weights = binomial_probabilities(units, probability)
    exact = Exact(noise, weights)
    epsilon = 0.5 * max(exact.loss(units * probability + 2.0 * noise), 0.1)
    goal = np.array([exact.remove(epsilon), exact.add(epsilon)])
    errors: list[npt.NDArray[np.float64]] = []
    for points in (300, 3_000, 30_000):
        pld = mixture_pld(noise, range(units + 1), weights, exact.width_of(points))
        errors.append(np.array(deltas(pld, epsilon)) - goal)
    assert np.all(errors[2] <= 1e-4 * goal + 1e-15)
    assert np.all(errors[2] <= errors[0] / 10.0 + 1e-15)  # quadratic in the width, 1/10,000


@pytest.mark.parametrize(
    ("noise", "units", "probability", "width", "rounds"),
    [
        (4.0, 32, 0.01, 1e-2, 2000),
        (2.0, 8, 0.3, 5e-2, 10),
        (0.5, 3, 1e-3, 1e-2, 100),
        (20.0, 512, 0.01, 1e-2, 50),
        (1.1, 1, 0.02, 1e-2, 150),
        (0.7, 1, 0.5, 1e-2, 100),
        (5.0, 1, 1e-4, 1e-3, 100),
        (6.0, 8, 1.0, 5e-2, 5),
    ],
)
def test_the_same_as_dp_accountings(
    noise: float, units: int, probability: float, width: float, rounds: int
) -> None:
    weights = binomial_probabilities(units, probability)
    ours = mixture_pld(noise, range(units + 1), weights, width)
    theirs = from_mixture_gaussian_mechanism(
        noise, list(range(units + 1)), weights, value_discretization_interval=width
    )
    for delta in (1e-3, 1e-6):
        epsilons = [pld.self_compose(rounds).get_epsilon_for_delta(delta) for pld in (ours, theirs)]
        assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-7)
    for epsilon in (0.0, 0.1, 1.0):
        assert deltas(ours, epsilon) == pytest.approx(deltas(theirs, epsilon), rel=1e-7, abs=1e-15)


@pytest.mark.parametrize("log_discarded", [-50.0, -20.0, -5.0])
@pytest.mark.parametrize(("noise", "units", "probability"), [(1.0, 8, 0.05), (4.0, 512, 0.01)])
def test_what_is_left_out_is_charged(
    noise: float, units: int, probability: float, log_discarded: float, monkeypatch: Patch
) -> None:
    """Components of up to e^-5 of mass are cut off here: far more than rounding could hide."""
    monkeypatch.setattr(module, "_LOG_DISCARDED", log_discarded)
    weights = binomial_probabilities(units, probability)
    exact = Exact(noise, weights)
    pld = mixture_pld(noise, range(units + 1), weights, exact.width_of(5000))
    assert 0.0 <= pld._pmf_remove._infinity_mass <= 2.1 * math.exp(log_discarded)
    for point in np.linspace(0.0, units * probability + 8.0 * noise, 25):
        assert_dominates(pld, exact, max(exact.loss(float(point)), 0.0))
    if log_discarded == -5.0:  # the rounding of the grid alone would not have been enough
        far = exact.loss(units * probability + 7.0 * noise)
        finite = deltas(pld, far)[0] - pld._pmf_remove._infinity_mass
        assert finite < exact.remove(far) * (1.0 - 1e-3)
