"""Twenty ways to lose the guarantee, each as small as people have shipped it.

Nothing here is used by a run: `mutants` puts one at a time into a game and shows that the audit
sees it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedsim.accounting.accountants import epsilon_of_composition
from fedsim.accounting.events import Composition
from fedsim.accounting.privacy_filter import RenyiFilter
from fedsim.clipping import FlatClip, PerLayerClip
from fedsim.data.bounding import Bounded
from fedsim.data.selection import pool
from fedsim.data.split import Split
from fedsim.data.store import TokenStore
from fedsim.estimators import FixedDenominator, WeightedSum
from fedsim.execution import Accumulator, Keys, Update
from fedsim.noise.matrix import NoiseMatrix
from fedsim.plan import RoundPlan
from fedsim.sampling import CyclicSampling, Indices, PoissonSampling
from fedsim.seeding import AesStream, Coins, Draws, NoiseKey, Purpose
from fedsim.tensors import add_, l2_norm
from tests.privacy.planted_bugs.game import ChoosingExecutor


class Unclipped(FlatClip):
    """States a bound and clips nothing."""

    def batch_factors(
        self, names: object, squares: torch.Tensor, *, norm_error: float = 0.0
    ) -> torch.Tensor:
        return torch.ones_like(squares)


class LargestLayer(PerLayerClip):
    """Takes the largest layer's bound for that of the whole update."""

    @property
    def bound(self) -> float:
        return max(self.l2_clip_norms.values())


@dataclass(frozen=True)
class ClipsTheMean(FixedDenominator):
    """Clips the average, where it should have been the updates, to `l2_clip_norm`."""

    l2_clip_norm: float = 1.0

    def factor(self, total: WeightedSum) -> float:
        mean = super().factor(total)
        return mean * min(1.0, self.l2_clip_norm / (mean * l2_norm(total.values)))


@dataclass(frozen=True)
class Undivided(FixedDenominator):
    """Releases the sum with the noise that is meant for the mean."""

    def factor(self, total: WeightedSum) -> float:
        return 1.0


@dataclass(frozen=True)
class RealisedDenominator(FixedDenominator):
    """Divides by the number of units that were drawn."""

    def factor(self, total: WeightedSum) -> float:
        return 1.0 / max(1, total.num_units)


class NoiseOfRound0(Draws):
    """Adds round 0's noise to every round."""

    def noise(self, round: int, purpose: Purpose = "noise") -> NoiseKey:
        return super().noise(0, purpose)


class NoiseOfCoins(Draws):
    """Draws the noise from the stream that drew the cohort."""

    def noise(self, round: int, purpose: Purpose = "noise") -> NoiseKey:
        def coins(count: int) -> npt.NDArray[np.float64]:
            return self.coins(np.arange(count, dtype=np.uint64)).of_units(round)

        class OfCoins(AesStream):
            def words(self, count: int, room: object = None) -> npt.NDArray[np.uint64]:
                return (coins(count) * 2.0**53).astype(np.uint64) << np.uint64(11)

            def random(self, size: int) -> npt.NDArray[np.float64]:
                return coins(size)

        class Shared(NoiseKey):
            def chunk(self, parameter: str, index: int) -> AesStream:
                return OfCoins(self.key)

        return Shared(bytes(16))


class SameNoise(RoundPlan):
    """Has the first of them."""

    @property
    def draws(self) -> Draws:
        return NoiseOfRound0(self.seed, self.entropy)


class SharedStream(RoundPlan):
    """Has the second."""

    @property
    def draws(self) -> Draws:
        return NoiseOfCoins(self.seed, self.entropy)


@dataclass(frozen=True)
class FixedSizeDrawn(PoissonSampling):
    """Is accounted as Poisson and draws the expected number of units every time."""

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        order = np.argsort(coins.of_units(round), kind="stable")
        return np.sort(order[: math.floor(self.probability * num_units + 0.5)])


class PassesNaN(Accumulator):
    """Trusts min(1, S/norm) with whatever comes."""

    def add(self, update: Update, weight: float = 1.0) -> None:
        factors = self.clip.factors(update.values)
        add_(self._values, update.values, {k: weight * f for k, f in factors.items()})
        self._weight += weight
        self._units += 1


@dataclass(frozen=True)
class AnyWeight:
    """A unit whose weight nobody checked."""

    key: int
    weight: float


class TakesAnyWeight(Accumulator):
    """Counts a unit as often as its weight says."""

    def add(self, update: Update, weight: float = 1.0) -> None:
        for _ in range(round(weight)):
            super().add(update)


class ByPlace(ChoosingExecutor):
    """Hashes where a unit stands in the data: who is added in front re-deals everybody behind."""

    def told_apart(self, cohort: Keys) -> Keys:
        return np.arange(len(cohort))


class AddsLosses(RenyiFilter):
    """Adds up the losses of runs chosen after looking, as if they had been fixed in advance."""

    def pays_for(self, costs: Composition) -> bool:
        return epsilon_of_composition(costs, self.delta, None, self.relation) <= self.epsilon


class Unpaid(NoiseMatrix):
    """Takes noise of earlier rounds back and adds no more fresh noise for it."""

    @property
    def amplification(self) -> float:
        return 1.0


class OneColumn(NoiseMatrix):
    """Pays for a unit's first participation, where columns of all of them overlap."""

    @property
    def amplification(self) -> float:
        return float(np.linalg.norm(self.column(self.rounds)))


@dataclass(frozen=True)
class TooEarly(CyclicSampling):
    """Is accounted with its groups, and each has its turn in half as many rounds."""

    def draw(self, num_units: int, round: int, coins: Coins) -> Indices:
        return CyclicSampling(self.rounds, self.groups // 2, self.rate).draw(
            num_units, round, coins
        )


@dataclass(frozen=True)
class OneRoundMore(CyclicSampling):
    """Has the price of its rounds but the last."""

    @property
    def events(self) -> int:
        return -(-(self.rounds - 1) // self.groups)


def by_author_alone(split: Split, store: TokenStore, **settings: Any) -> Bounded:  # noqa: ANN401
    """Pool at most a group size of each author's examples, whoever else owns them."""
    without_graph = copy.copy(store)
    without_graph.graph = None
    return pool(split, without_graph, **settings)


def overlapping(cohort: Keys, size: int) -> Iterator[Keys]:
    """Cut a cohort into shards that begin with the last unit of the one before."""
    for start in range(0, len(cohort), size):
        yield cohort[max(0, start - 1) : start + size]
