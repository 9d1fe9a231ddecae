"""Auditing with one run: the p-value by hand and by simulation, and valid under dependence."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedsim.audit.one_run import bound_from_canaries, epsilon_lower_bound, p_value
from fedsim.errors import ConfigError
from tests.privacy.mechanism_audit.bounds import Scores

Coins = npt.NDArray[np.bool_]


def test_without_delta_it_is_the_tail_of_randomised_response() -> None:
    truth = 1.0 / (1.0 + math.exp(-1.5))
    by_hand = sum(math.comb(20, k) * truth**k * (1 - truth) ** (20 - k) for k in range(18, 21))
    assert p_value(50, 20, 18, 1.5, 0.0) == pytest.approx(by_hand)


def test_the_term_of_delta_by_hand() -> None:
    """Two guesses, both right, ε = 0: P(V = 2) = 1/4; max(2·P(V=1), P(V<=1)) = 2·(1/2) = 1."""
    assert p_value(10, 2, 2, 0.0, 0.01) == pytest.approx(0.25 + 10 * 0.01 * 1.0)


def test_it_grows_with_epsilon_and_delta_and_falls_with_right_guesses() -> None:
    values = [p_value(100, 60, 50, eps, 1e-4) for eps in np.linspace(0.0, 5.0, 40)]
    assert values == sorted(values)
    assert p_value(100, 60, 50, 1.0, 1e-3) > p_value(100, 60, 50, 1.0, 1e-4)
    assert p_value(100, 60, 51, 1.0, 1e-4) < p_value(100, 60, 50, 1.0, 1e-4)
    assert p_value(100, 60, 0, 1.0, 1e-4) == 1.0


def test_the_bound_inverts_the_p_value() -> None:
    bound = epsilon_lower_bound(1000, 200, 180, 1e-5)
    assert bound > 0.0
    assert p_value(1000, 200, 180, bound, 1e-5) <= 0.05
    assert p_value(1000, 200, 180, bound + 1e-3, 1e-5) > 0.05
    assert epsilon_lower_bound(1000, 200, 105, 1e-5) == 0.0
    assert epsilon_lower_bound(1000, 0, 0, 1e-5) == 0.0


def responses(included: Coins, epsilon: float, rng: np.random.Generator) -> Scores:
    """Each canary's coin by randomised response, with noise that breaks ties."""
    truth = rng.random(len(included)) < 1.0 / (1.0 + math.exp(-epsilon))
    return np.where(truth, included, ~included) + 0.01 * rng.random(len(included))


def leaking(included: Coins, delta: float, rng: np.random.Generator) -> Scores:
    """(0, δ)-DP per canary, all at once: with probability δ every coin is shown."""
    noise = rng.random(len(included))
    return included + noise if rng.random() < delta else noise


LIMIT = stats.binom.ppf(1 - 1e-4, 150, 0.05)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_bounds_exceed_the_truth_no_more_often_than_stated(epsilon: float) -> None:
    """Null calibration at ε = 0: scores that have nothing to do with the coins."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(150):
        included = rng.random(400) < 0.5
        scores = responses(included, epsilon, rng)
        found.append(bound_from_canaries(scores, included, delta=0.0).epsilon)
    assert sum(one > epsilon for one in found) <= LIMIT
    if epsilon:
        assert np.median(found) > 0.6 * epsilon


def test_a_mechanism_that_fails_for_all_with_probability_delta_stays_within() -> None:
    """Without the term of δ, bounds on it would be several units in δ of the runs."""
    rng = np.random.default_rng(4)
    counts = {"honest": 0, "deaf to δ": 0}
    for _ in range(150):
        included = rng.random(100) < 0.5
        scores = leaking(included, 0.15, rng)
        counts["honest"] += bound_from_canaries(scores, included, delta=0.15).epsilon > 0.0
        counts["deaf to δ"] += bound_from_canaries(scores, included, delta=0.0).epsilon > 0.0
    assert counts["honest"] <= LIMIT < counts["deaf to δ"]


def test_coins_and_scores_of_different_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="included: 2"):
        bound_from_canaries(np.zeros(3), np.zeros(2, dtype=bool), delta=0.0)
