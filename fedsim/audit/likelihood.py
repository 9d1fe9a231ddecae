"""The best test of one user's presence: the likelihood ratio of a run's releases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import special

from fedsim.accounting.events import RoundCost
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix
from fedsim.sampling import BalancedSampling, CyclicSampling, binomial_probabilities

Array = npt.NDArray[np.float64]


def log_ratio_of_rounds(
    moved: Sequence[Array], cost: RoundCost, matrix: NoiseMatrix = INDEPENDENT
) -> Array:
    """Return log P(moved | target in) / P(moved | target out) of all rounds, (trials,).

    This is the most powerful test (Neyman and Pearson). Log ratios of Poisson rounds add up. With
    balanced sampling the target takes part in one round of a pass, so a pass has the mean of its
    rounds' ratios; rounds not seen yet count as 1. With cyclic sampling the result is the mean over
    the target's possible groups.

    Args:
        moved: per round from the first, (trials,): the release's component in the target's
            direction, divided by the change that one unit makes.
        cost: cost of a round, with noise.
        matrix: noise matrix. If its columns overlap (BLT), the ratio ignores the overlap, which
            makes the test weaker.
    """
    sampling = cost.sampling
    if isinstance(sampling, CyclicSampling):
        return _of_cyclic(np.stack(moved), sampling, cost, matrix)
    if not isinstance(sampling, BalancedSampling):
        each = (log_likelihood_ratio(one, cost, sampling.probability) for one in moved)
        return sum(each, np.zeros(1))
    passes: dict[int, list[Array]] = {}
    for round, one in enumerate(moved):
        passes.setdefault(sampling.pass_of(round)[0], []).append(
            log_likelihood_ratio(one, cost, 1.0)
        )
    total = np.zeros(1)
    for first, seen in passes.items():
        size = sampling.pass_of(first)[1]
        unseen = [np.zeros_like(seen[0])] * (size - len(seen))
        total = total + special.logsumexp([*seen, *unseen], axis=0) - np.log(size)
    return total


def log_likelihood_ratio(
    moved: Array, cost: RoundCost, rate: float, length: Array | float = 1.0
) -> Array:
    """Return the log ratio of rounds in which each unit of the target is drawn with one rate.

    Lengths are in multiples of the change that one unit makes. In the target's direction, a round
    releases N(B, z²) with B ~ Binomial(units_per_user, rate) drawn target units, or N(0, z²)
    without the target. This pair dominates (Charles et al. 2024, Theorems 1 and 2).

    Args:
        moved: any shape, as in `log_ratio_of_rounds`.
        cost: cost of a round, with noise.
        rate: probability that a unit is drawn.
        length: length of one unit's change; `moved` is then the component times this length.
    """
    variance = cost.noise_multiplier**2
    total = np.full_like(moved, -np.inf)
    for units, weight in enumerate(binomial_probabilities(cost.units_per_user, rate)):
        if weight > 0.0:
            exponent = (units * moved - 0.5 * np.square(units * length)) / variance
            total = np.logaddexp(total, exponent + np.log(weight))
    return total


def _of_cyclic(
    moved: Array, sampling: CyclicSampling, cost: RoundCost, matrix: NoiseMatrix
) -> Array:
    """Return the log ratio for `moved` (rounds, trials) with correlated noise of matrix C.

    C times the releases has independent noise; there, a round of the target is a column of C.
    """
    columns = matrix.dense(len(moved)) / matrix.amplification
    seen = columns @ moved
    of_groups = []
    for group in range(sampling.groups):
        turns = columns[:, group :: sampling.groups]
        if sampling.rate == 1.0:
            turns = turns.sum(axis=1, keepdims=True)
        lengths = np.linalg.norm(turns, axis=0)[:, None]
        each = log_likelihood_ratio(turns.T @ seen, cost, sampling.rate, lengths)
        of_groups.append(each.sum(axis=0))
    total: Array = special.logsumexp(of_groups, axis=0) - np.log(sampling.groups)
    return total
