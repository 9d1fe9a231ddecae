"""The best test of one user's presence: the likelihood ratio of what a round releases."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedsim.accounting.events import RoundCost
from fedsim.sampling import binomial_probabilities

Array = npt.NDArray[np.float64]


def log_likelihood_ratio(moved: Array, cost: RoundCost) -> Array:
    """Return log P(moved | target in) / P(moved | target out), per round and trial.

    In the direction that all of the target's units push, a round releases N(B, z²) with
    B ~ Binomial(units_per_user, q) drawn units of the target, and N(0, z²) without it, where
    lengths are in what one unit moves (Charles et al. 2024, Theorems 1 and 2: this pair
    dominates). No test beats the ratio (Neyman and Pearson); over rounds it adds up.

    Args:
        moved: any shape; the release's component in that direction over what one unit moves.
        cost: of Poisson sampling, with noise.
    """
    weights = binomial_probabilities(cost.units_per_user, cost.sampling.probability)
    variance = cost.noise_multiplier**2
    total = np.full_like(moved, -np.inf)
    for units, weight in enumerate(weights):
        if weight > 0.0:
            exponent = (units / variance) * moved - (
                0.5 * units * units / variance - np.log(weight)
            )
            total = np.logaddexp(total, exponent)
    return total
