"""Cohorts follow the law that is accounted: N independent coins of probability q."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedsim.sampling import PoissonSampling
from tests.helpers.coins import secret, seeded

N, Q, ROUNDS = 200, 0.1, 3000


def p_value_of_binomial(sizes: npt.NDArray[np.int64]) -> float:
    """Chi-squared goodness of fit of cohort sizes to Binomial(N, q), tails pooled."""
    low, high = (int(stats.binom.ppf(level, N, Q)) for level in (0.01, 0.99))
    observed = np.bincount(np.clip(sizes, low, high) - low, minlength=high - low + 1)
    law = stats.binom(N, Q)
    expected = np.array([law.pmf(k) for k in range(low, high + 1)])
    expected[0], expected[-1] = law.cdf(low), law.sf(high - 1)
    return float(stats.chisquare(observed, expected * len(sizes)).pvalue)


def test_cohort_sizes_are_binomial() -> None:
    sampling = PoissonSampling(Q)
    sizes = [len(sampling.draw(N, round, seeded(11, N))) for round in range(ROUNDS)]
    assert p_value_of_binomial(np.array(sizes)) > 1e-3


def test_system_entropy_draws_the_same_law() -> None:
    sampling = PoissonSampling(Q)
    sizes = [len(sampling.draw(N, 0, secret(N))) for _ in range(ROUNDS)]
    assert p_value_of_binomial(np.array(sizes)) > 1e-6  # not seeded: one failure in a million


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(np.full(ROUNDS, int(N * Q)), id="fixed size"),
        pytest.param(np.random.default_rng(0).poisson(N * Q, ROUNDS), id="a Poisson number"),
        pytest.param(np.random.default_rng(0).binomial(N, 1.05 * Q, ROUNDS), id="q is 5 % off"),
    ],
)
def test_other_samplers_are_rejected(wrong: npt.NDArray[np.int64]) -> None:
    assert p_value_of_binomial(wrong) < 1e-3


def test_every_unit_is_drawn_equally_often_and_independently() -> None:
    sampling = PoissonSampling(Q)
    drawn = np.zeros((ROUNDS, N))
    for round in range(ROUNDS):
        drawn[round, sampling.draw(N, round, seeded(3, N))] = 1
    counts = drawn.sum(axis=0)
    deviation = ((counts - ROUNDS * Q) ** 2 / (ROUNDS * Q * (1 - Q))).sum()
    assert 1e-3 < stats.chi2.cdf(deviation, N) < 1 - 1e-3
    neighbours = np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(ROUNDS * N)


def test_probability_one_takes_everybody() -> None:
    assert len(PoissonSampling(1.0).draw(50, 0, seeded(0, 50))) == 50
