"""Charles et al. 2024, Lemma 1, by numerical integration: the Rényi form of Conjecture 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special, stats

ORDERS = range(2, 33)
TOLERANCE = 1e-11
"""Allowed rounding error of (α - 1) R_α, times one plus its value."""

_STEP, _REACH = 0.25, 14.0  # grid step, and reach beyond the outer peaks, in standard deviations


class Comparison(NamedTuple):
    """Both sides of the lemma: R_α(P_K(Kσ) || Q(Kσ)) and R_α(P_1(σ) || Q(σ)), in nats."""

    order: int
    group_size: int
    noise_multiplier: float
    probability: float
    renyi_els: float
    renyi_uls: float
    violated: bool


def renyi_divergences(
    orders: Sequence[int], noise_multiplier: float, units: int, probability: float
) -> npt.NDArray[np.float64]:
    """Return R_α(N(Binom(units, probability), σ²) || N(0, σ²)) for integer orders α >= 2.

    Works in logarithms on x = σt. For an integer α the integrand of E (P/Q)^α is a sum of
    Gaussians of unit width in t with means in [0, α units / σ]. So the trapezoidal rule with step
    h has the relative error 2 exp(-2π²/h²): at 0.25 only rounding remains.

    Args:
        orders: (n,) integers >= 2.
        noise_multiplier: σ > 0.
        units: K >= 1.
        probability: p in (0, 1].

    Returns:
        (n,) divergences, in nats.
    """
    counts = np.arange(units + 1)
    last = max(orders) * units / noise_multiplier + _REACH
    points = np.arange(-_REACH, last + _STEP, _STEP)
    exponents = np.multiply.outer(counts / noise_multiplier, points)
    weights = stats.binom.logpmf(counts, units, probability)
    weights = weights - 0.5 * (counts / noise_multiplier) ** 2
    log_ratio = special.logsumexp(exponents + weights[:, None], axis=0)
    log_moments = [
        special.logsumexp(order * log_ratio - 0.5 * points**2)
        + math.log(_STEP / math.sqrt(2.0 * math.pi))
        for order in orders
    ]
    return np.asarray(log_moments) / (np.asarray(orders) - 1.0)


def compare(group_size: int, noise_multiplier: float, probability: float) -> list[Comparison]:
    """Return both sides for every order, at one K, σ and p."""
    els = renyi_divergences(ORDERS, group_size * noise_multiplier, group_size, probability)
    uls = renyi_divergences(ORDERS, noise_multiplier, 1, probability)
    slack = TOLERANCE * (1.0 / (np.asarray(ORDERS) - 1.0) + uls)
    return [
        Comparison(
            order,
            group_size,
            noise_multiplier,
            probability,
            float(left),
            float(right),
            bool(left > right + allowed),
        )
        for order, left, right, allowed in zip(ORDERS, els, uls, slack, strict=True)
    ]
