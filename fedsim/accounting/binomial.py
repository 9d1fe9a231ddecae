"""Binomial probabilities that a likelihood ratio can safely multiply."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats


def binomial_probabilities(trials: int, probability: float) -> list[float]:
    """Return P(Binomial(trials, probability) = i) for i = 0 … trials, summing to 1.

    What matters is *relative* accuracy in the upper tail: a term of 1e-60 is multiplied by a
    likelihood ratio that can be as large as it is small. scipy's pmf has it (better than 1e-12
    for thousands of trials); powers and binomial coefficients in floats overflow. Each term is
    rounded, so the sum misses 1 by a few units in the last place. Dividing by it matters:
    mass that is missing from one side of the pair is a sub-distribution, whose divergence the
    accountant would read as too small.

    Examples:
        >>> [round(value, 6) for value in binomial_probabilities(2, 0.5)]
        [0.25, 0.5, 0.25]
    """
    pmf = stats.binom.pmf(np.arange(trials + 1), trials, probability)
    return [float(value) for value in pmf / math.fsum(pmf)]
