"""The sampler of the concentration filter: everybody takes part, if the test lets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting import dp_event

from fedsim.sampling import Coins, Indices


@dataclass(frozen=True)
class ConcentratedSampling:
    """Every user, every round, until AboveThreshold finds the gradients not concentrated.

    Nothing is sampled, so nothing is amplified: Asi & Liu 2024 take the whole population, and a
    score of a sampled cohort has no proof here.

    Attributes:
        population: the number of users N, public under replace-one; the draw insists on it.
        test_epsilon: what AboveThreshold costs over a whole run, pure DP.
    """

    population: int
    test_epsilon: float
    kind: ClassVar[str] = "concentrated"
    guaranteed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if type(self.population) is not int or self.population < 1:
            raise ValueError(f"population = {self.population!r}: give an integer >= 1")
        if not 0.0 < self.test_epsilon < float("inf"):
            raise ValueError(f"test_epsilon = {self.test_epsilon!r}: give a finite number > 0")

    @property
    def probability(self) -> float:
        """Always 1."""
        return 1.0

    def of(self, noun: str) -> str:
        """Return the law in words."""
        return f"all {self.population} {noun}, tested for concentration"

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        """Return everybody."""
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
                f"sampling kind {self.kind!r}: nobody has proved its cost for {units_per_user} "
                "units per user; a user has one gradient"
            )
        return dp_event.UnsupportedDpEvent()
