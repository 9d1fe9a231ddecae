"""Bounds from counts and scores: right by hand, valid on nothing, and not without the split."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tests.privacy.mechanism_audit.bounds import (
    Scores,
    bound_from_scores,
    epsilon_lower_bound,
    lower_limit,
    upper_limit,
)


def test_limits_invert_the_binomial_tails() -> None:
    assert stats.binom.sf(6, 20, lower_limit(7, 20, 0.025)) == pytest.approx(0.025)
    assert stats.binom.cdf(7, 20, upper_limit(7, 20, 0.025)) == pytest.approx(0.025)
    assert (lower_limit(0, 20, 0.025), upper_limit(20, 20, 0.025)) == (0.0, 1.0)


def test_a_perfect_test_is_worth_what_its_trials_are() -> None:
    """0 of n: the upper limit is 1 - 0.025^(1/n), n of n the mirror image."""
    rare = 1.0 - 0.025 ** (1 / 1000)
    expected = math.log((1.0 - rare - 1e-3) / rare)
    assert epsilon_lower_bound(1000, 1000, 0, 1000, 1e-3) == pytest.approx(expected)


@pytest.mark.parametrize("counts", [(5, 10, 5, 10), (0, 10, 0, 10), (0, 10, 10, 10)])
def test_nothing_shown_is_zero(counts: tuple[int, int, int, int]) -> None:
    assert epsilon_lower_bound(*counts, 1e-5) == 0.0


def naive(scores_in: Scores, scores_out: Scores) -> float:
    """The best threshold on the scores that it is counted on, at plain rates: not to be done."""
    alarms = np.arange(1, len(scores_out) + 1)
    hits = len(scores_in) - np.searchsorted(np.sort(scores_in), np.sort(scores_out)[::-1])
    return float(np.log(np.maximum(hits, 1e-9) / alarms).max())


def test_users_who_were_never_in_show_nothing_more_often_than_stated() -> None:
    """Null calibration. At 5 % more than `limit` of 600 comes once in ten thousand."""
    rng = np.random.default_rng(11)
    pairs = [rng.standard_normal((2, 200)) for _ in range(600)]
    limit = stats.binom.ppf(1 - 1e-4, 600, 0.05)
    assert sum(bound_from_scores(a, b, delta=0.0).epsilon > 0.0 for a, b in pairs) <= limit
    # The same count sees a level that is not kept, and a threshold that is not held back.
    lax = [bound_from_scores(a, b, delta=0.0, confidence=0.2).epsilon for a, b in pairs]
    assert sum(one > 0.0 for one in lax) > limit
    assert sum(naive(a, b) > 0.5 for a, b in pairs) > limit


def test_scores_that_the_threshold_was_chosen_on_are_not_counted() -> None:
    rng = np.random.default_rng(2)
    scores_in, scores_out = rng.standard_normal((2, 200))
    for share in (0.5, 0.25):
        bound = bound_from_scores(scores_in, scores_out, delta=0.0, chosen_on=share)
        assert bound.positives == bound.negatives == 200 * (1.0 - share)


def test_randomised_response_is_bounded_below_its_epsilon_and_near_it() -> None:
    epsilon, rng = 2.0, np.random.default_rng(5)
    truth = 1.0 / (1.0 + math.exp(-epsilon))
    found = []
    for seed in range(100):
        scores_in = (rng.random(4000) < truth).astype(float)
        scores_out = (rng.random(4000) >= truth).astype(float)
        found.append(bound_from_scores(scores_in, scores_out, delta=0.0, seed=seed).epsilon)
    assert sum(one > epsilon for one in found) <= stats.binom.ppf(1 - 1e-4, 100, 0.05)
    assert np.median(found) > 0.85 * epsilon


def test_a_test_for_out_is_found_where_it_is_the_better_one() -> None:
    """In: always 0. Out: 0 half of the time, else -1. Only "below" is a sure sign."""
    rng = np.random.default_rng(0)
    out = -(rng.random(1000) < 0.5).astype(float)
    bound = bound_from_scores(np.zeros(1000), out, delta=0.0)
    assert bound.says_in == "below"
    assert bound.epsilon > 3.0


def test_a_release_that_is_not_finite_is_a_sign() -> None:
    bound = bound_from_scores(np.full(500, np.nan), np.zeros(500), delta=0.0)
    assert bound.epsilon > 3.0
