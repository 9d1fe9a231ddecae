"""Accountant of the concentration filter: one test per run, Gaussian releases, errors of the test.

Let s be a round's score on one of two neighbours. If s >= 2N/3 + 1, replacing a user moves the
filtered mean by at most its sensitivity (`FilteredMean`), so the release is a Gaussian mechanism.
If s is less, there is no bound. The run passes such a round only if the test's noise exceeds
4N/5 - (2N/3 + 1) = 2N/15 - 1. Remove the transcripts with such a round. The density of the others
factorises, given the releases, into that of AboveThreshold, with a ratio of at most e^(ε_test), and
that of adaptively composed Gaussians. So the run is (ε_test + ε_Gauss(δ - β), δ)-DP, where β bounds
the probability of the removed transcripts. The price covers the T rounds of a run, even if it ends
earlier: T fixes β and the number of releases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.accounting.events import Composition, Profile, RoundCost
from fedsim.accounting.methods.accountant import Accountant
from fedsim.accounting.methods.pld import solve_epsilon
from fedsim.experiments.studies.chua_2024.asi_liu.sampling import ConcentratedSampling, halting_test
from fedsim.sampling import PoissonSampling, Relation

_NOT_DRAWN = 2.0**-104  # mass of Laplace noise that `laplace` never draws, for both neighbours


@dataclass(frozen=True)
class AboveThresholdAccountant(Accountant):
    """Basic composition of test and releases; under replace-one."""

    def refusal(self, cost: RoundCost, relation: Relation) -> str | None:
        """Return why this accountant cannot prove anything about a round, or None."""
        if not isinstance(cost.sampling, ConcentratedSampling):
            return "accounts only rounds that are tested for concentration"
        if relation is not Relation.REPLACE:
            return "needs a public number of users; use replace-one"
        return None

    def epsilon(self, costs: Composition, delta: float, relation: Relation) -> float:
        """Return ε at δ; inf if the test is wrong with a probability of δ or more."""
        of_tests, wrong = _tests(costs)
        if wrong >= delta:
            return math.inf
        return of_tests + solve_epsilon(_releases(costs), delta - wrong, Relation.ADD_OR_REMOVE)[0]

    def profile(self, costs: Composition, delta: float, relation: Relation) -> Profile:
        """Return δ as a function of ε."""
        of_tests, wrong = _tests(costs)
        releases = solve_epsilon(_releases(costs), delta, Relation.ADD_OR_REMOVE)[1].deltas

        def at(epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            deltas = wrong + releases(np.maximum(epsilons - of_tests, 0.0))
            return np.where(epsilons < of_tests, 1.0, np.minimum(deltas, 1.0))

        return at

    def renyi(self, cost: RoundCost, relation: Relation, order: float) -> tuple[float, float]:
        """Return the Rényi divergence of one run's rounds at an order > 1, and β.

        The divergence covers the transcripts that are not removed: their loss is at most ε_test
        above that of the Gaussian releases.
        """
        tests, wrong = _tests([(cost, 1)])
        (gaussian, rounds), *_ = _releases([(cost, 1)])
        return tests + rounds * order / (2.0 * gaussian.noise_multiplier**2), wrong


def failure_probability(sampling: ConcentratedSampling) -> float:
    """Return β, an upper bound on passing any of a run's rounds with a score below 2N/3 + 1.

    Such a pass needs a threshold noise below -x, or a score noise above margin - x. x minimises the
    sum of both tails.
    """
    margin = 2.0 * sampling.population / 15.0 - 1.0
    test = halting_test(sampling.population, sampling.test_epsilon)
    a = test.epsilon / (2.0 * test.sensitivity)  # rates of the two Laplace tails
    b = a / 2.0
    rounds = sampling.rounds
    x = (b * margin + math.log(a / (b * rounds))) / (a + b)
    x = min(max(x, 0.0), max(margin, 0.0))
    tails = 0.5 * math.exp(-a * x) + 0.5 * rounds * math.exp(-b * (margin - x))
    tails += (rounds + 1) * _NOT_DRAWN
    return min(1.0, tails) if margin > 0.0 else 1.0


def _tests(costs: Composition) -> tuple[float, float]:
    """Return ε of all tests, one per run, and the probability that any test is wrong."""
    runs = [
        (cost.sampling, cost.runs(count))
        for cost, count in costs
        if isinstance(cost.sampling, ConcentratedSampling)
    ]
    wrong = sum(count * failure_probability(sampling) for sampling, count in runs)
    return sum(count * sampling.test_epsilon for sampling, count in runs), wrong


def _releases(costs: Composition) -> Composition:
    """Return the Gaussian mechanisms of whole runs: Poisson sampling at rate 1."""
    return [
        (
            RoundCost(PoissonSampling(1.0), cost.noise_multiplier),
            cost.runs(count) * (cost.run_rounds or 1),
        )
        for cost, count in costs
    ]
