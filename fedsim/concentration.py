"""The Asi & Liu filter: who is near whom, how concentrated all are, and the test that halts.

Algorithm 3 in App. A of Chua et al. 2024, on the gradients of all N users. Everything is a
function of the pairwise distances, computed in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fedsim.seeding import RandomSource

SCORE_SENSITIVITY = 2.0
"""What replacing one user moves a score by, at most: its pairs, 2(N - 1) of them, over N."""

_COLUMNS = 65_536  # of the gradients that are float64 at once

Matrix = npt.NDArray[np.float64]


def distances(gradients: torch.Tensor) -> Matrix:
    """Return (users, users) float64: L2 distances between the rows of (users, parameters).

    By ‖a‖² + ‖b‖² - 2ab, a block of columns at a time: below about 1e-8 of the norms a distance is
    rounding. The diagonal is 0.
    """
    gram = torch.zeros(len(gradients), len(gradients), dtype=torch.float64)
    for start in range(0, gradients.shape[1], _COLUMNS):
        block = gradients[:, start : start + _COLUMNS].double()
        gram += block @ block.T
    squares = gram.diagonal()
    squared = (squares[:, None] + squares[None, :] - 2.0 * gram).clamp_(min=0.0)
    squared.fill_diagonal_(0.0)
    return squared.sqrt_().numpy()


def concentration_score(between: Matrix, radius: float) -> float:
    """Return s, eq. 1: how many pairs are within τ, over N; N at most, counting (i, i) too."""
    return float(np.count_nonzero(between <= radius)) / len(between)


def filter_weights(between: Matrix, radius: float) -> npt.NDArray[np.float64]:
    """Return p, line 12: 0 for a user with under N/2 users within 2τ, 1 from 2N/3 on, else linear.

    The paper keeps a user with this probability. Here it is the user's weight in the mean: its
    expectation is near the same, and what one user moves is then bounded for certain. With coins
    the number of others who change sides has a tail, which the noise would have to cover.
    """
    count = len(between)
    near = np.count_nonzero(between <= 2.0 * radius, axis=1)
    weights: npt.NDArray[np.float64] = ((near - count / 2.0) / (count / 6.0)).clip(0.0, 1.0)
    return weights


@dataclass(frozen=True)
class AboveThreshold:
    """The sparse vector technique that ends with the first score *below* its threshold.

    Dwork and Roth 2014, Algorithm 1 of §3.6, with both signs turned: the threshold gets one Laplace
    noise for the whole run, each score one of twice that scale. All answers up to and with the
    first failure are `epsilon`-DP together, however many, and however they were chosen.

    Attributes:
        epsilon: of the whole run.
        threshold: what a score should reach.
        sensitivity: the most that a neighbour changes a score.
    """

    epsilon: float
    threshold: float
    sensitivity: float = SCORE_SENSITIVITY

    def noisy_threshold(self, source: RandomSource) -> float:
        """Draw the threshold of a run; never again within it."""
        return self.threshold + laplace(2.0 * self.sensitivity / self.epsilon, source)

    def passes(self, score: float, noisy_threshold: float, source: RandomSource) -> bool:
        """Say whether a score, with noise of its own, reaches the run's noisy threshold."""
        noise = laplace(4.0 * self.sensitivity / self.epsilon, source)
        return score + noise >= noisy_threshold


def halting_test(num_users: int, epsilon: float) -> AboveThreshold:
    """Return the test of Algorithm 3: a score of 4N/5."""
    return AboveThreshold(epsilon, 0.8 * num_users)


def laplace(scale: float, source: RandomSource) -> float:
    """Draw from Laplace(0, scale): the difference of two exponentials."""
    first, second = 1.0 - source.random(2)
    return scale * (math.log(first) - math.log(second))
