"""Privacy loss distribution of a sampled Gaussian in which one user's update replaces another's.

P = (1 - q) N(0, σ²) + q N(-1, σ²) and Q = (1 - q) N(0, σ²) + q N(1, σ²). It is dp_accounting's to
the bit, which inverts the loss at one point of the grid after another; here all are inverted at
once, in a third of the time.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

from fedsim.accounting.methods.mixture_pld import drawn_or_nothing

Array = npt.NDArray[np.float64]

LEAST_RATE = 1e-10
"""Below it, 1 - q and sums with it have too few digits: a user is found whenever drawn."""


def replacing_pld(noise: float, probability: float, width: float) -> PrivacyLossDistribution:
    """Return the PLD of one round, an upper bound, the same in both directions.

    Args:
        noise: σ, the standard deviation over what one user can add, > 0.
        probability: q in (0, 1]; below `LEAST_RATE` the bound is that of a user who is found
            whenever drawn.
        width: of the grid of privacy losses, in nats.
    """
    if probability < LEAST_RATE:
        return drawn_or_nothing(width, probability)
    pair = GaussianPrivacyLoss(
        noise, sampling_prob=probability, adjacency_type=AdjacencyType.REPLACE
    )
    bounds = pair.connect_dots_bounds()
    first, last = math.floor(bounds.epsilon_lower / width), math.ceil(bounds.epsilon_upper / width)
    losses = np.arange(first, last + 1) * width
    cuts = inverse_loss(noise, probability, losses)
    deltas = pair.mu_upper_cdf(cuts) - np.exp(losses + pair.mu_lower_log_cdf(cuts))
    return PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
            width, first, last, np.clip(deltas, 0.0, 1.0)
        )
    )


def inverse_loss(noise: float, probability: float, losses: Array) -> Array:
    """Return the points, (n,), at which the loss is each of `losses`.

    y = σ² (arcsinh(-sinh(ε/2) α) - ε/2), α = e^(1/2σ²) (1 - q)/q, and the hyperbolic functions by
    their logarithms: neither of them overflows. The steps and their order are dp_accounting's, and
    so are the few functions of `math`: numpy's own differ from them in the last bit.
    """
    if probability == 1.0:
        return -losses * noise**2 / 2.0
    log_alpha = 0.5 * (1.0 / noise) ** 2 + math.log1p(-probability) - math.log(probability)
    halves = np.abs(losses) / 2.0
    rest = [math.log1p(-math.exp(-2.0 * half)) if half else -math.inf for half in halves.tolist()]
    logs = log_alpha + (halves + np.array(rest) - math.log(2.0))
    arcsinh = np.logaddexp(0.5 * np.logaddexp(0.0, 2.0 * logs), logs)
    points: Array = noise**2 * (np.where(losses >= 0.0, -arcsinh, arcsinh) - losses / 2.0)
    return np.where(losses == 0.0, 0.0, points)
