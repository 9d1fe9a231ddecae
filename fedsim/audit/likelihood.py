"""The best test of one user's presence: the likelihood ratio of what a run releases."""

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

    No test beats the ratio (Neyman and Pearson). Over rounds of Poisson sampling it adds up. With
    balanced sampling the target takes part in one round of a pass, so a pass has the mean of its
    rounds' ratios; rounds not seen yet count as 1. With cyclic sampling it is the mean over the
    groups that the target may be in.

    Args:
        moved: of each round from the first, (trials,): the release's component in the direction
            that the target pushes, over what one unit moves.
        cost: of a round, with noise.
        matrix: what correlates the noise. With coins and columns that overlap (BLT) the ratio is
            computed as if they did not: a weaker test.
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
    """Return the ratio of rounds in which each unit of the target takes part with one rate.

    In the direction that all of the target's units push, a round releases N(B, z²) with
    B ~ Binomial(units_per_user, rate) drawn units of the target, and N(0, z²) without it, where
    lengths are in what one unit moves (Charles et al. 2024, Theorems 1 and 2: this pair
    dominates).

    Args:
        moved: any shape, as of `log_ratio_of_rounds`.
        cost: of a round, with noise.
        rate: of a unit's coin.
        length: what one unit moves; `moved` is then the component times this.
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
    """Return the ratio of (rounds, trials) whose noise a matrix takes back.

    C times the releases has independent noise, and a round of the target is there a column of C.
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
