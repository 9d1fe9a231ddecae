"""The test that halts a run of the Asi & Liu filter: AboveThreshold, for scores below.

Nothing here needs torch: accounting takes it too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedsim.seeding import RandomSource

SCORE_SENSITIVITY = 2.0
"""What replacing one user moves a score by, at most: its pairs, 2(N - 1) of them, over N."""


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
