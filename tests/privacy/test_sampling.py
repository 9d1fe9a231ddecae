"""Cohorts follow the law that is accounted: N independent coins of probability q."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedsim.sampling import Coins, PoissonSampling
from fedsim.seeding import secret_stream, stream

N, Q, ROUNDS = 200, 0.1, 3000


def seeded(seed: int) -> Coins:
    return lambda round: stream(seed, "sampling", round)


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
    sizes = [len(sampling.draw(N, round, seeded(11))) for round in range(ROUNDS)]
    assert p_value_of_binomial(np.array(sizes)) > 1e-3


def test_system_entropy_draws_the_same_law() -> None:
    sampling = PoissonSampling(Q)
    sizes = [len(sampling.draw(N, 0, lambda _: secret_stream())) for _ in range(ROUNDS)]
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
        drawn[round, sampling.draw(N, round, seeded(3))] = 1
    counts = drawn.sum(axis=0)
    deviation = ((counts - ROUNDS * Q) ** 2 / (ROUNDS * Q * (1 - Q))).sum()
    assert 1e-3 < stats.chi2.cdf(deviation, N) < 1 - 1e-3
    neighbours = np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(ROUNDS * N)


def test_probability_one_takes_everybody() -> None:
    assert len(PoissonSampling(1.0).draw(50, 0, seeded(0))) == 50


class Even:
    """Gives the uniforms (i + 1/2)/n: so many fall below a bound as there should."""

    def random(self, size: int) -> npt.NDArray[np.float64]:
        return (np.arange(size) + 0.5) / max(size, 1)


@pytest.mark.parametrize("rate", [2.0**-19, 2.0**-21, 2.0**-23])
def test_coins_of_small_rates_fall_as_often_as_they_are_charged_for(rate: float) -> None:
    drawn = PoissonSampling(rate).draw(1 << 23, 0, lambda _: Even())
    assert len(drawn) == max(1, int(rate * (1 << 23)))


def test_a_rate_below_the_bits_of_a_uniform_is_not_rounded_up() -> None:
    """One uniform of 53 bits is below 1e-20 with probability 1.1e-16, which is 11,000 times it."""

    class Zeros(Even):
        """The first unit's coins fall again and again; it is asked about each part of the rate."""

        asked = 0

        def random(self, size: int) -> npt.NDArray[np.float64]:
            self.asked += 1
            return np.where(np.arange(size) == 0, 2.0**-53, 0.9)

    coins = Zeros()
    assert PoissonSampling(1e-20).draw(50, 0, lambda _: coins).tolist() == [0]
    assert coins.asked == 4  # 2⁻²⁰ three times, and the rest
