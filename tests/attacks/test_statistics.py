"""The statistics on log ratios that are known, and how much a user's overfitting moves them."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.attacks.measuring import STATISTICS, rank_correlation, statistic
from fedsim.report.attack_report import Checkpoint, Statistic

RATIOS = np.array([[1.0, 4.0], [5.0, 0.5], [0.5, 9.0]])


@pytest.mark.parametrize(
    ("which", "samples", "expected"),
    [
        ("mean", 2, [2.5, 2.75, 4.75]),
        ("max", 2, [4.0, 5.0, 9.0]),
        ("min", 2, [1.0, 0.5, 0.5]),
        ("mean", 1, [1.0, 5.0, 0.5]),
    ],
)
def test_over_the_first_samples(which: Statistic, samples: int, expected: list[float]) -> None:
    assert statistic(which, RATIOS[:, :samples]).tolist() == expected


def test_planted_scores_are_found_by_the_mean_before_max_and_min() -> None:
    """Members' samples are a little likelier each: a mean over many adds that up."""
    random = np.random.default_rng(0)
    noise = random.standard_normal((400, 16))
    noise[:200] += 0.5
    scores = {which: statistic(which, noise) for which in STATISTICS}
    areas = {which: (of[:200, None] > of[200:]).mean() for which, of in scores.items()}
    # 0.5 * sqrt(16) = 2 deviations apart: Φ(2 / √2) = 0.921
    assert areas["mean"] == pytest.approx(0.921, abs=0.03)
    assert max(areas["max"], areas["min"]) < areas["mean"]


def states(gaps: list[float], areas: list[float]) -> list[Checkpoint]:
    return [
        Checkpoint(round=i, auroc=area, loss_in=1.0, loss_out=1.0 + gap, gap=gap)
        for i, (gap, area) in enumerate(zip(gaps, areas, strict=True))
    ]


def test_rank_correlation_is_of_ranks() -> None:
    assert rank_correlation(states([0.1, 0.2, 9.0], [0.5, 0.6, 0.61])) == pytest.approx(1.0)
    # ranks 1 2 3 4 against 2 1 3 4: 1 - 6 * 2 / (4 * 15)
    found = rank_correlation(states([0.1, 0.2, 0.3, 0.4], [0.6, 0.5, 0.7, 0.8]))
    assert found == pytest.approx(0.8)


def test_too_few_or_equal_states_have_none() -> None:
    assert rank_correlation(states([0.1, 0.2], [0.5, 0.6])) is None
    assert rank_correlation(states([0.1, 0.2, 0.3], [0.5, 0.5, 0.5])) is None
