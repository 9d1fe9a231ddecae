"""The one-run bound by f-DP: by hand, by a linear program, by simulation, and never too sure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import optimize, stats

from fedsim.accounting.events import RoundCost
from fedsim.audit.f_dp import Profile, bound_in_family, own_family
from fedsim.audit.one_run import Guesses, bound_from_canaries, ways
from fedsim.sampling import PoissonSampling, Relation

DELTA = 1e-5
SHARES = (0.1, 0.2)


def gaussian(mu: float) -> Profile:
    """Points of the profile of N(0, 1) against N(μ, 1), in closed form."""
    epsilons = np.linspace(0.0, 12.0, 61)
    above = stats.norm.cdf(mu / 2 - epsilons / mu)
    return Profile(epsilons, above - np.exp(epsilons) * stats.norm.cdf(-mu / 2 - epsilons / mu))


def pure(epsilon: float) -> Profile:
    return Profile(np.array([epsilon]), np.array([0.0]))


def test_the_inverse_is_that_of_the_curve() -> None:
    """A Gaussian test of power 0.7 errs Φ(Φ⁻¹(0.7) - μ) of the time; lines lie just below."""
    exact = stats.norm.cdf(stats.norm.ppf(0.7) - 1.0)
    assert exact - 2e-3 < gaussian(1.0).least_wrong(0.7) <= exact
    assert pure(1.0).least_wrong(0.2) == pytest.approx(0.2 / np.e)
    assert pure(1.0).least_wrong(0.9) == pytest.approx(1.0 - 0.1 * np.e)
    assert Profile(np.array([0.0]), np.array([0.1])).least_wrong(0.05) == 0.0


def by_linear_program(guesses: Guesses, profile: Profile) -> float:
    """The largest P(N >= c) that the sums over "at least i right" allow, all of them at once."""
    slopes, starts = profile.lines
    made, numbers = guesses.made, np.arange(guesses.made + 1)
    rows, limits = [], []
    for i in range(1, made + 1):
        right = np.where(numbers >= i, numbers, 0) / guesses.slots
        wrong = np.where(numbers >= i - 1, made - numbers, 0) / guesses.slots
        rows += [slope * right - wrong for slope in slopes]
        limits += (-starts).tolist()
    found = optimize.linprog(
        -(numbers >= guesses.correct).astype(float),
        A_ub=np.array(rows),
        b_ub=limits,
        A_eq=np.ones((1, made + 1)),
        b_eq=[1.0],
    )
    assert found.fun is not None
    return -float(found.fun)


@pytest.mark.parametrize("profile", [pure(1.0), gaussian(1.0), gaussian(0.3)])
@pytest.mark.parametrize(
    "guesses",
    [
        Guesses(20, 20, 16),
        Guesses(30, 12, 11),
        Guesses(15, 6, 6),
        Guesses(9, 9, 5),
        Guesses(9, 9, 0),
    ],
)
def test_the_recursion_solves_the_linear_program(profile: Profile, guesses: Guesses) -> None:
    expected = by_linear_program(guesses, profile)
    assert profile.p_value(guesses) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("made", "epsilon"), [(400, 1.0), (40, 2.0), (40, 0.0)])
def test_randomised_response_is_bounded_by_little_more_than_its_tail(
    made: int, epsilon: float
) -> None:
    """Above the binomial tail, which randomised response has, and below that of one right less."""
    truth = 1.0 / (1.0 + np.exp(-epsilon))
    correct = int(stats.binom.ppf(0.95, made, truth)) + 1
    bound = pure(epsilon).p_value(Guesses(400, made, correct))
    assert stats.binom.sf(correct - 1, made, truth) <= bound
    assert bound < stats.binom.sf(correct - 2, made, truth)


def canaries(
    mu: float, count: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Scores of a Gaussian mechanism that each canary moves by μ standard deviations."""
    included = rng.random(count) < 0.5
    return mu * included + rng.normal(size=count), included


def refuted(profile: Profile, runs: int, seed: int, mu: float = 1.0) -> int:
    """How often guesses about canaries of N(μ, 1) refute a profile at 95 %."""
    rng = np.random.default_rng(seed)
    made = [ways(*canaries(mu, 400, rng), SHARES) for _ in range(runs)]
    return sum(any(profile.refutes(way, 0.05 / len(each)) for way in each) for each in made)


def test_the_true_curve_is_refuted_no_more_often_than_stated_and_a_third_of_it_often() -> None:
    assert refuted(gaussian(1.0), 200, 0) <= stats.binom.ppf(1 - 1e-4, 200, 0.05)
    assert refuted(gaussian(1.0), 20, 1, mu=3.0) >= 18


def test_scores_that_know_nothing_refute_nothing() -> None:
    assert refuted(pure(0.0), 200, 2, mu=0.0) <= stats.binom.ppf(1 - 1e-4, 200, 0.05)
    assert refuted(pure(0.0), 20, 3, mu=1.0) == 20


def test_guesses_of_all_canaries_together_stay_within() -> None:
    """One coin of the mechanism, of probability δ, shows all coins: the worst dependence."""
    rng, failing = np.random.default_rng(4), Profile(np.array([0.0]), np.array([0.1]))
    false = 0
    for _ in range(300):
        scores, included = canaries(0.0, 100, rng)
        scores = included.astype(float) if rng.random() < 0.1 else scores
        false += any(failing.refutes(way, 0.05 / 4) for way in ways(scores, included, SHARES))
    assert false <= stats.binom.ppf(1 - 1e-4, 300, 0.05)


def test_who_guesses_in_alone_has_half_the_slots() -> None:
    scores, included = np.arange(10.0), np.arange(10) > 5
    assert ways(scores, included, (0.4,)) == [Guesses(5.0, 2, 2), Guesses(10, 4, 4)]


COST = RoundCost(PoissonSampling(0.5), 2.0, 1)


def test_members_of_a_family_lose_less_with_more_noise() -> None:
    family = own_family(COST, 10, Relation.ADD_OR_REMOVE, DELTA)
    members = [family(scale) for scale in (0.5, 1.0, 2.0)]
    epsilons = [epsilon for _, epsilon in members]
    assert epsilons == sorted(epsilons, reverse=True)
    powers = [1.0 - profile.least_wrong(0.5) for profile, _ in members]
    assert powers == sorted(powers, reverse=True)


def test_the_bound_is_below_the_truth_and_above_that_without_a_curve() -> None:
    """Full participation is a Gaussian mechanism: canaries move √10/10 σ each, ε = 4.38."""
    cost = RoundCost(PoissonSampling(1.0), np.sqrt(10.0), 1)
    family = own_family(cost, 10, Relation.ADD_OR_REMOVE, DELTA)
    rng, better, bounds = np.random.default_rng(5), 0, []
    for _ in range(20):
        scores, included = canaries(1.0, 400, rng)
        found, p_value = bound_in_family(scores, included, family, delta=DELTA, shares=SHARES)
        plain = bound_from_canaries(scores, included, delta=DELTA, shares=SHARES)
        better += found.epsilon >= plain.epsilon
        bounds.append(found.epsilon)
        assert (p_value < 0.05) == (found.epsilon > 0.99 * family(1.0)[1])
    assert better >= 18
    assert 1.0 < np.median(bounds) < max(bounds) < 4.378
