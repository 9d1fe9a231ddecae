"""The likelihood ratio of all releases of a run, for each sampler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np
import numpy.typing as npt
from scipy import special

from fedsim.accounting.events import RoundCost
from fedsim.audit.likelihood import log_likelihood_ratio
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix
from fedsim.sampling import BalancedSampling, CyclicSampling

Array = npt.NDArray[np.float64]


def log_ratio_of_rounds(
    moved: Iterable[Array], cost: RoundCost, matrix: NoiseMatrix = INDEPENDENT
) -> Array:
    """Return the log-likelihood ratio of all of these rounds, of each trial.

    Of Poisson sampling it adds up. With balanced sampling the target takes part in one round of a
    pass, so a pass has the mean of its rounds' ratios; rounds not seen yet count as 1. With cyclic
    sampling it is the mean over the groups that the target may be in.

    Args:
        moved: as of `log_likelihood_ratio`, round by round, from the first.
        cost: of a round.
        matrix: what correlates the noise.

    Raises:
        ValueError: as there.
    """
    if isinstance(cost.sampling, CyclicSampling) and cost.units_per_user == 1:
        return _of_cyclic(np.stack(list(moved)), cost.sampling, cost.noise_multiplier, matrix)
    if not isinstance(cost.sampling, BalancedSampling):
        return cast(Array, sum(log_likelihood_ratio(each, cost) for each in moved))
    variance, size, seen = cost.noise_multiplier**2, cost.sampling.pass_rounds, 0
    within: Array | np.float64 = np.float64(-np.inf)
    passes = []
    for each in moved:
        within = np.logaddexp(within, (each - 0.5) / variance)
        seen += 1
        if seen == size:
            passes.append(within - np.log(size))
            within, seen = np.float64(-np.inf), 0
    if seen:
        passes.append(np.logaddexp(within, np.log(size - seen)) - np.log(size))
    return cast(Array, sum(passes))


def _of_cyclic(
    moved: Array, sampling: CyclicSampling, noise_multiplier: float, matrix: NoiseMatrix
) -> Array:
    """Return the ratio of rounds whose noise a matrix takes back, (trials,).

    C times the releases has independent noise, and a round of the target is there a column of C.
    With coins columns of two turns must have no row in common.
    """
    columns = matrix.dense(len(moved)) / matrix.amplification
    seen, variance = columns @ moved, noise_multiplier**2
    of_groups = []
    for group in range(sampling.groups):
        turns = columns[:, group :: sampling.groups]
        if sampling.rate == 1.0:
            turns = turns.sum(axis=1, keepdims=True)
        each = (turns.T @ seen - 0.5 * np.square(turns).sum(axis=0)[:, None]) / variance
        here = np.log(sampling.rate)
        stays = np.log1p(-sampling.rate) if sampling.rate < 1.0 else -np.inf
        of_groups.append(np.logaddexp(stays, here + each).sum(axis=0))
    total: Array = special.logsumexp(of_groups, axis=0) - np.log(sampling.groups)
    return total
