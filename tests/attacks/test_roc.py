"""AUROC, rates and intervals: hand values, what all scores obey, and users nobody trained on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.attacks.roc import Scores, auroc, bootstrap, roc_curve, true_positive_rate
from fedsim.seeding import stream

SIDE = st.lists(st.integers(-5, 5), min_size=1, max_size=30).map(lambda v: np.array(v, np.float64))


def test_hand_values() -> None:
    inside, outside = np.array([3.0, 2.0, 2.0, 0.0]), np.array([2.0, 1.0])
    # 3 beats both; each 2 beats one and ties one; 0 beats nobody: (2 + 1.5 + 1.5 + 0) of 8
    assert auroc(inside, outside) == 5.0 / 8.0
    assert true_positive_rate(inside, outside, 0.49) == 0.25  # nobody may pass: above 2
    assert true_positive_rate(inside, outside, 0.5) == 0.75  # one may: above 1
    assert true_positive_rate(inside, outside, 1.0) == 1.0
    false, true = roc_curve(inside, outside)
    assert false.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert true.tolist() == [0.0, 0.25, 0.75, 0.75, 1.0]


@given(SIDE, SIDE)
def test_the_area_counts_pairs_and_is_that_below_the_curve(inside: Scores, outside: Scores) -> None:
    pairs = (inside[:, None] > outside) + 0.5 * (inside[:, None] == outside)
    assert auroc(inside, outside) == pytest.approx(pairs.mean())
    false, true = roc_curve(inside, outside)
    assert float(np.trapezoid(true, false)) == pytest.approx(pairs.mean())
    assert auroc(inside, outside) + auroc(outside, inside) == pytest.approx(1.0)


@given(SIDE, SIDE, st.floats(0.0, 1.0))
def test_the_rate_is_the_best_threshold_that_lets_few_enough_pass(
    inside: Scores, outside: Scores, rate: float
) -> None:
    thresholds = [-np.inf, *inside, *outside]
    best = max(
        float((inside > t).mean())
        for t in thresholds
        if (outside > t).sum() <= int(rate * len(outside) + 1e-9)
    )
    assert true_positive_rate(inside, outside, rate) == best


def test_intervals_of_users_nobody_trained_on_cover_a_half() -> None:
    """Null calibration: both sides from one distribution, a hundred times, of 95 % intervals."""
    covered = 0
    for trial in range(100):
        random = stream(trial, "attack", 7)
        inside, outside = random.standard_normal(40), random.standard_normal(60)
        (interval,) = bootstrap([auroc], inside, outside, stream(trial, "attack", 8), 100)
        covered += interval.low <= 0.5 <= interval.high
    # 95 expected, less what 100 resamples and 40 users cost: 86 is more than 3 deviations off
    assert 86 <= covered <= 100


def test_the_same_seed_gives_the_same_interval() -> None:
    inside, outside = np.arange(9.0), np.arange(7.0) - 0.5
    first, again, other = (
        bootstrap([auroc], inside, outside, stream(seed, "attack", 8), 20) for seed in (1, 1, 2)
    )
    assert first == again != other
