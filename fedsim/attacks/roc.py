"""ROC of a membership attack, measured from scores.

The attacker guesses that users with a score above a threshold are members. All measures take two
non-empty arrays of finite float64 scores: of users in the training data, and of other users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]
Measure = Callable[[Scores, Scores], float]

COVERAGE = 0.95


@dataclass(frozen=True)
class Interval:
    """A 95 % bootstrap interval from `low` to `high`, and the bootstrap's standard deviation."""

    low: float
    high: float
    stddev: float


def auroc(inside: Scores, outside: Scores) -> float:
    """Return the probability that a member scores above a non-member, ties counting half."""
    below = np.searchsorted(np.sort(outside), inside, side="left")
    up_to = np.searchsorted(np.sort(outside), inside, side="right")
    return float((below + up_to).sum() / (2.0 * len(inside) * len(outside)))


def true_positive_rate(inside: Scores, outside: Scores, false_positive_rate: float) -> float:
    """Return the largest true positive rate at a false positive rate of at most the given one.

    With n non-members, a rate below 1/n allows no false positive.
    """
    allowed = int(false_positive_rate * len(outside) + 1e-9)  # 0.29 * 100 is 28.999…
    if allowed >= len(outside):
        return 1.0
    threshold = np.sort(outside)[::-1][allowed]
    return float((inside > threshold).mean())


def roc_curve(inside: Scores, outside: Scores) -> tuple[Scores, Scores]:
    """Return the false and true positive rates of all thresholds, from (0, 0) to (1, 1).

    Equal scores pass together. The straight line between two points corresponds to random choice
    among equal scores, so that the area below the curve is `auroc`.
    """
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    rates = [
        np.concatenate(([0], np.searchsorted(np.sort(-scores), -thresholds, side="right")))
        / len(scores)
        for scores in (outside, inside)
    ]
    return rates[0], rates[1]


def bootstrap(
    measures: list[Measure],
    inside: Scores,
    outside: Scores,
    generator: np.random.Generator,
    resamples: int,
) -> list[Interval]:
    """Return a bootstrap interval for each measure, from the same resamples.

    Members and non-members are resampled separately, each group at its own size. So an interval
    covers the choice of users, but not another training or other texts of the same users.
    """
    values = np.empty((resamples, len(measures)))
    for row in values:
        members = inside[generator.integers(len(inside), size=len(inside))]
        others = outside[generator.integers(len(outside), size=len(outside))]
        row[:] = [measure(members, others) for measure in measures]
    tail = (1.0 - COVERAGE) / 2.0
    lows, highs = np.quantile(values, [tail, 1.0 - tail], axis=0)
    return [
        Interval(float(low), float(high), float(column.std(ddof=1)))
        for low, high, column in zip(lows, highs, values.T, strict=True)
    ]
