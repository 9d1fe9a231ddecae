"""Two runs on one person, the second chosen after looking at the first: a budget's game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import special

from fedsim.accounting.events import RoundCost
from fedsim.accounting.privacy_filter import RenyiFilter, best_order
from fedsim.plan import RoundPlan
from fedsim.sampling import PoissonSampling, Relation
from tests.privacy.mechanism_audit.bounds import Scores
from tests.privacy.planted_bugs.game import Game, PlantedExecutor

Array = npt.NDArray[np.float64]

RATES = (1.0, 0.1, 0.02, 0.005)  # of the second run
_FIRST = RoundCost(PoissonSampling(1.0), 2.0)
_TIMES = 15_000  # trials of this game to one of a game of rounds, which costs more
_LEAST, _MOST = 0.2, 20.0  # noise multipliers


@dataclass(frozen=True, eq=False)
class TwoRuns(Game):
    """The game of a budget: its adversary takes the second run that the first speaks for most.

    The plan of the executor states the budget as its claim; what is released are the two sums
    along the target, sampled Gaussians, and the statistic is their whole privacy loss.

    Attributes:
        rule: lets pass what the budget pays for.
    """

    rule: RenyiFilter = field(kw_only=True)

    def play(self, trials: int, seed: int = 0) -> tuple[Scores, Scores]:
        """Return (15000 * trials,) losses of two runs with the target, and of runs without."""
        seconds = [quietest(self.rule, rate) for rate in RATES]
        rng = np.random.default_rng(seed)
        scores_in, scores_out = (
            self._losses(seconds, rng, trials * _TIMES, present=present)
            for present in (True, False)
        )
        return scores_in, scores_out

    def _losses(
        self, seconds: Sequence[RoundCost], rng: np.random.Generator, trials: int, *, present: bool
    ) -> Array:
        losses = released_loss(_FIRST, rng, trials, present=present)
        grid = np.linspace(losses.min(), losses.max(), 10_000)
        gains = [divergence(second, self.rule.epsilon - grid) for second in seconds]
        chosen = np.argmax(gains, axis=0)[np.searchsorted(grid, losses)]
        for number, second in enumerate(seconds):
            here = np.flatnonzero(chosen == number)
            losses[here] += released_loss(second, rng, len(here), present=present)
        return losses


def two_runs(plan: RoundPlan, kind: type[RenyiFilter], delta: float) -> TwoRuns:
    """Return the game of a plan whose one round claims the budget, ε = 2 at δ, kept by a rule."""
    order = best_order(2.0, delta, Relation.ADD_OR_REMOVE)
    rule = kind(2.0, delta, Relation.ADD_OR_REMOVE, order)
    return TwoRuns(PlantedExecutor(plan, {}), frozenset({0}), rule=rule)


def quietest(rule: RenyiFilter, rate: float) -> RoundCost:
    """Return the second run of this rate with the least noise that a rule lets pass, to 0.2 %."""
    low, high = _LEAST, _MOST
    for _ in range(12):
        middle = float(np.sqrt(low * high))
        cost = RoundCost(PoissonSampling(rate), middle)
        low, high = (low, middle) if rule.pays_for([(_FIRST, 1), (cost, 1)]) else (middle, high)
    return RoundCost(PoissonSampling(rate), high)


def released_loss(
    cost: RoundCost, rng: np.random.Generator, trials: int, *, present: bool
) -> Array:
    """Return (trials,) losses of releases of a sampled Gaussian, with the target or without."""
    q, z = cost.sampling.probability, cost.noise_multiplier
    drawn = rng.random(trials) < q if present else np.zeros(trials, dtype=bool)
    releases = drawn + z * rng.standard_normal(trials)
    return np.log1p(q * np.expm1((releases - 0.5) / z**2))


def divergence(cost: RoundCost, epsilon: Array) -> Array:
    """Return the hockey-stick divergence of a sampled Gaussian, a user removed, at any real ε."""
    q, z = cost.sampling.probability, cost.noise_multiplier
    ratio = np.exp(epsilon)
    with np.errstate(divide="ignore", invalid="ignore"):
        point = z * z * np.log((ratio - (1.0 - q)) / q) + 0.5
        above = (1.0 - q) * special.ndtr(-point / z) + q * special.ndtr(-(point - 1.0) / z)
        value = above - ratio * special.ndtr(-point / z)
    return np.where(ratio <= 1.0 - q, 1.0 - ratio, value)
