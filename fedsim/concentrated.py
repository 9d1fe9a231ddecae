"""What a plan of the concentration filter says: everybody takes part; how far one can move it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import dp_accounting
import numpy as np
import torch
from dp_accounting import dp_event

from fedsim.estimators import WeightedSum
from fedsim.sampling import Coins, Indices
from fedsim.tensors import scale


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


@dataclass(frozen=True)
class FilteredMean:
    """The mean weighted by the filter, Σ w g / Σ w. Sensitivity 24 τ/N to replacing one user.

    That holds while the score of one of the neighbours is at least 2N/3 + 1, see
    `fedsim.accounting.above_threshold`. Proof. Some user's τ-ball holds 2N/3 + 1 users; all of
    them but the replaced one have weight 1 before and after. Of the others each weight moves by
    at most 6/N, together less than 2; the replaced user's two weights are at most 1 each. Any two
    users of positive weight have a common neighbour, so they are 4τ apart at most. Taking weight
    e away from a mean of weight W >= 2N/3, all within 4τ, moves it by at most 4τ e/W; e <= 4.

    Attributes:
        radius: τ.
        num_users: N.
    """

    radius: float
    num_users: int
    sampling_probability: float = field(default=1.0, init=False)
    kind: str = field(default="filtered-mean", init=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.radius < float("inf"):
            raise ValueError(f"radius = {self.radius}: must be positive and finite")

    def __call__(self, total: WeightedSum) -> dict[str, torch.Tensor]:
        """Return the weighted mean; zero where nobody has weight."""
        return scale(total.values, 1.0 / total.weight if total.weight else 0.0)

    def sensitivity(self, bound: float) -> float:
        """Return 24 τ/N, whatever the clip's bound is: concentration bounds what a user moves."""
        return 24.0 * self.radius / self.num_users

    def describe(self) -> dict[str, float | str]:
        """Return the kind, τ and N."""
        return {"kind": self.kind, "radius": self.radius, "num_users": self.num_users}
