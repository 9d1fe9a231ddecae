"""What (ε, δ)-differential privacy allows an attacker: a bound on the ROC, and on its area.

Who has to tell from an output whether one user was in the data can be right about a user who was
with probability TPR and wrong about one who was not with probability FPR only if

    TPR <= e^ε FPR + δ    and    1 - FPR <= e^ε (1 - TPR) + δ

(Kairouz, Oh and Viswanath 2015, Theorem 2.1). The second line is the first one mirrored at the
diagonal TPR + FPR = 1.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import expit

Rates = npt.NDArray[np.float64]


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
