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
"""Maximum change of a score by replacing one user: the user's 2(N - 1) pairs, over N."""


@dataclass(frozen=True)
class AboveThreshold:
    """The sparse vector technique that ends with the first score *below* its threshold.

    Dwork and Roth 2014, Algorithm 1 of §3.6, with both signs reversed. The threshold gets one
    Laplace noise for the whole run; each score gets a Laplace noise of twice that scale. All
    answers up to the first failure, including it, are together `epsilon`-DP, for any number of
    scores and any way to choose them.

    Attributes:
        epsilon: ε of the whole run.
        threshold: a score passes if it reaches this, up to noise.
        sensitivity: maximum difference of a score between neighbours.
    """

    epsilon: float
    threshold: float
    sensitivity: float = SCORE_SENSITIVITY

    def noisy_threshold(self, source: RandomSource) -> float:
        """Draw the noisy threshold of a run; draw it only once per run."""
        return self.threshold + laplace(2.0 * self.sensitivity / self.epsilon, source)

    def passes(self, score: float, noisy_threshold: float, source: RandomSource) -> bool:
        """Return whether a score plus new noise reaches the run's noisy threshold."""
        noise = laplace(4.0 * self.sensitivity / self.epsilon, source)
        return score + noise >= noisy_threshold


def halting_test(num_users: int, epsilon: float) -> AboveThreshold:
    """Return the test of Algorithm 3: a score of 4N/5."""
    return AboveThreshold(epsilon, 0.8 * num_users)


def laplace(scale: float, source: RandomSource) -> float:
    """Draw from Laplace(0, scale): the difference of two exponentials, from 106-bit uniforms.

    The draw never exceeds 73 scales. The omitted tails have a mass of 2^-105, which
    `failure_probability` includes.
    """
    uniforms = source.random(2) + 2.0**-53 * (source.random(2) + 2.0**-54)
    first, second = np.log(uniforms)
    return scale * float(first - second)


@dataclass(frozen=True)
class ConcentratedSampling(Sampling):
    """Every user, every round, until AboveThreshold finds the gradients not concentrated.

    Without sampling there is no amplification. Asi & Liu 2024 use the whole population; a score of
    a sampled cohort has no proof.

    Attributes:
        population: number of users N, public under replace-one; `draw` raises for any other number.
        test_epsilon: ε of AboveThreshold over a whole run, pure DP.
        rounds: T, number of rounds of the run, fixed before the first; all rounds share one
            threshold and one price.
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
        """Return `UnsupportedDpEvent`: the test is paid for once per run, not per round.

        Raises:
            ValueError: more than one unit per user; a user has one gradient.
        """
        if units_per_user > 1:
            raise ValueError(
                f"sampling kind {self.kind!r}: no proved cost for {units_per_user} "
                "units per user; a user has one gradient"
            )
        return dp_event.UnsupportedDpEvent()
