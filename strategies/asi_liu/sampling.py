"""Full participation with a sparse-vector test that may halt a run (Asi & Liu 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting import dp_event

from fedsim.sampling import Indices, Sampling
from fedsim.seeding import Coins, RandomSource

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
    """Draw from Laplace(0, scale): the difference of two exponentials, of uniforms of 106 bits.

    It ends at 73 scales, beyond which the law has 2^-105: `failure_probability` counts that.
    """
    uniforms = source.random(2) + 2.0**-53 * (source.random(2) + 2.0**-54)
    first, second = np.log(uniforms)
    return scale * float(first - second)


@dataclass(frozen=True)
class ConcentratedSampling(Sampling):
    """Every user, every round, until AboveThreshold finds the gradients not concentrated.

    Nothing is sampled, so nothing is amplified: Asi & Liu 2024 take the whole population, and a
    score of a sampled cohort has no proof here.

    Attributes:
        population: the number of users N, public under replace-one; the draw insists on it.
        test_epsilon: what AboveThreshold costs over a whole run, pure DP.
        rounds: of the run, T, fixed beforehand: one threshold and one price for all of them.
    """

    population: int
    test_epsilon: float
    rounds: int
    kind: ClassVar[str] = "concentrated"
    hides_size: ClassVar[bool] = False
    accountant: ClassVar[str | None] = "above-threshold"

    @property
    def run_rounds(self) -> int:
        """The rounds of a run."""
        return self.rounds

    @property
    def probability(self) -> float:  # type: ignore[override]
        """Always 1."""
        return 1.0

    def in_words(self, noun: str) -> str:
        """Return the sampling in words."""
        return f"all {self.population} {noun}, tested for concentration"

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return every unit."""
        if num_units != self.population:
            raise ValueError(f"population = {self.population}: there are {num_units} units")
        return np.arange(num_units, dtype=np.int64)

    def event(self, noise_multiplier: float, units_per_user: int) -> dp_accounting.DpEvent:
        """Return an event that no library composes: the test is paid for once a run, not a round.

        Raises:
            ValueError: several units a user, whom one gradient does not stand for.
        """
        if units_per_user > 1:
            raise ValueError(
                f"sampling kind {self.kind!r}: no proved cost for {units_per_user} "
                "units per user; a user has one gradient"
            )
        return dp_event.UnsupportedDpEvent()
