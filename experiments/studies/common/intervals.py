"""95 % intervals over trials for a mean and for a ratio of paired means."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
_NORMAL = 1.959964


class Interval(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def mean_interval(values: Values) -> Interval:
    """Return the mean of (trials,) independent values, by the normal approximation."""
    return _around(float(values.mean()), values - values.mean())


def ratio_interval(above: Values, below: Values) -> Interval:
    """Return mean(above) / mean(below), paired by trial, to first order (the delta method).

    Args:
        above: (trials,).
        below: (trials,), of the same trials, with a mean that is not 0.
    """
    ratio = float(above.mean() / below.mean())
    return _around(ratio, (above - ratio * below) / below.mean())


def _around(value: float, deviations: Values) -> Interval:
    spread = float(np.sqrt(np.sum(deviations**2) / (len(deviations) - 1)))
    half = _NORMAL * spread / math.sqrt(len(deviations))
    return Interval(value, value - half, value + half)
