"""ROC of a membership attack: measured from scores, and bounded by (ε, δ).

An attacker calls users above a threshold members. The measures take the scores of users who were in
the training data and of users who were not, finite float64, neither empty.

The bound: an attacker who decides from an output whether one user was in the data has a true
positive rate TPR and a false positive rate FPR only if

    TPR <= e^ε FPR + δ    and    1 - FPR <= e^ε (1 - TPR) + δ

(Kairouz, Oh and Viswanath 2015, Theorem 2.1). The second line is the first one mirrored at the
diagonal TPR + FPR = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit

Scores = npt.NDArray[np.float64]
Rates = npt.NDArray[np.float64]
Measure = Callable[[Scores, Scores], float]

COVERAGE = 0.95


@dataclass(frozen=True)
class Interval:
    """Percentiles of a bootstrap: the middle 95 %, from `low` to `high`, and its deviation."""

    low: float
    high: float
    stddev: float


def auroc(inside: Scores, outside: Scores) -> float:
    """Return the probability that a member scores above a non-member, ties counting half."""
    below = np.searchsorted(np.sort(outside), inside, side="left")
    up_to = np.searchsorted(np.sort(outside), inside, side="right")
    return float((below + up_to).sum() / (2.0 * len(inside) * len(outside)))


def true_positive_rate(inside: Scores, outside: Scores, false_positive_rate: float) -> float:
    """Return the largest share of members above a threshold that at most this share of others pass.

    With n others no rate below 1/n differs from 0: then none of them may pass.
    """
    allowed = int(false_positive_rate * len(outside) + 1e-9)  # 0.29 * 100 is 28.999…
    if allowed >= len(outside):
        return 1.0
    threshold = np.sort(outside)[::-1][allowed]
    return float((inside > threshold).mean())


def roc_curve(inside: Scores, outside: Scores) -> tuple[Scores, Scores]:
    """Return the false and true positive rates of every threshold, from (0, 0) to (1, 1).

    Scores that are equal pass together: between two points lies what tossing a coin among the
    equal ones gives, a straight line, so that the area below is `auroc`.
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
    """Return a bootstrap interval for each measure, all from the same resamples.

    Members and others are resampled separately, each group at its size. So an interval covers the
    choice of the users in the two groups: not another training of the model, and not other texts
    of the same users.
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


def roc_bound(false_positive_rates: Rates, epsilon: float, delta: float) -> Rates:
    """Return the largest true positive rate at each false positive rate, both in [0, 1].

    Raises:
        ValueError: ε is negative or NaN, δ outside [0, 1].

    Examples:
        >>> roc_bound(np.array([0.0, 0.1, 1.0]), epsilon=1.0, delta=1e-5).round(3).tolist()
        [0.0, 0.272, 1.0]
    """
    _check(epsilon, delta)
    rates = np.asarray(false_positive_rates, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # 0 times infinity is decided below
        steep = np.exp(epsilon) * rates + delta
    steep = np.where(rates > 0.0, steep, delta)
    flat = 1.0 - math.exp(-epsilon) * (1.0 - delta - rates)
    return np.minimum(np.minimum(steep, flat), 1.0)


def auroc_bound(epsilon: float, delta: float) -> float:
    """Return the area under `roc_bound`: 1 - (1 - δ)² / (1 + e^ε).

    What the curve leaves free above it is two triangles, mirror images: the corners are (0, 1),
    (0, δ) and the point where the two lines meet, at FPR = (1 - δ) / (1 + e^ε).

    Raises:
        ValueError: ε is negative or NaN, δ outside [0, 1].

    Examples:
        >>> round(auroc_bound(0.0, 0.0), 3), round(auroc_bound(2.0, 1e-5), 3)
        (0.5, 0.881)
    """
    _check(epsilon, delta)
    return 1.0 - (1.0 - delta) ** 2 * float(expit(-epsilon))


def _check(epsilon: float, delta: float) -> None:
    if not epsilon >= 0.0:
        raise ValueError(f"epsilon = {epsilon}: give a number >= 0")
    if not 0.0 <= delta <= 1.0:
        raise ValueError(f"delta = {delta}: give a number in [0, 1]")
