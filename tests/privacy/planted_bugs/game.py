"""One neighbouring pair played out: real rounds over planted updates, with the target and without.

Slower than `replicas`, and nothing is assumed: every trial is a run of its own, every unit goes
through shards and the real accumulator, and units may share directions, move a denominator or
crowd each other out. It is what the deliberate bugs of `mutants` are shown with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from fedsim.accounting.events import RoundCost
from fedsim.audit.likelihood import log_ratio_of_rounds
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Accumulator, Keys, Unit, Update, shards
from fedsim.plan import RoundPlan
from fedsim.sampling import CyclicSampling
from fedsim.seeding import base, hashes
from fedsim.tensors import Tensors
from tests.privacy.mechanism_audit.bounds import Scores
from tests.privacy.mechanism_audit.replicas import Replicas, releases, stepping_by_release

Statistic = Callable[[Sequence[Tensors]], float]
_NOTHING = torch.zeros(0, 0, dtype=torch.int64)


def planted_unit(key: int, weight: float) -> Unit:
    """Return a unit without text, its weight checked as everybody's."""
    return Unit(key, _NOTHING, torch.zeros(0, dtype=torch.int64), weight)


@dataclass(frozen=True, eq=False)
class PlantedExecutor:
    """Sums planted updates as a client does: shard by shard, each by an accumulator.

    Attributes:
        plan: of the game's rounds.
        updates: what each unit answers with, by its key.
        weights: of units; 1 where none is given.
        unit: makes a unit of a key and a weight.
        accumulator: the class that checks, clips and adds.
        cut: cuts a cohort into shards of a size.
    """

    plan: RoundPlan
    updates: Mapping[int, Tensors]
    weights: Mapping[int, float] = field(default_factory=dict)
    unit: Callable[[int, float], Unit] = planted_unit
    accumulator: type[Accumulator] = Accumulator
    cut: Callable[[Keys, int], object] = shards

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        """Return the sum over the cohort, two units a shard."""
        total = WeightedSum.zero(parameters)
        for keys in self.cut(cohort, 2):  # type: ignore[attr-defined]
            adding = self.accumulator(parameters, clip)
            for key in keys.tolist():
                unit = self.unit(key, self.weights.get(key, 1.0))
                adding.add(Update(self.updates[key], loss=0.0, num_gradients=1), unit.weight)
            total += adding.total()
        return total


class ChoosingExecutor(PlantedExecutor):
    """Lets each unit bring its planted update or the opposite, as a public hash of it decides.

    A stand-in for held-out examples, selections and orders, which are such hashes in a run.
    """

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        """Return the sum over the cohort of what the hashes chose."""
        chosen = {
            key: {name: sign * value for name, value in self.updates[key].items()}
            for key, sign in zip(cohort.tolist(), self.signs(cohort), strict=True)
        }
        return PlantedExecutor(self.plan, chosen).clipped_sum(parameters, cohort, clip, round)

    def signs(self, cohort: Keys) -> list[int]:
        """Return 1 or -1 for each unit of the cohort."""
        drawn = hashes(base(0, "selection", 0), self.told_apart(cohort))
        return [1 if hashed % 2 else -1 for hashed in drawn.tolist()]

    def told_apart(self, cohort: Keys) -> Keys:
        """Return what is hashed of each unit: who it is."""
        return cohort


def along_target(seen: Sequence[Tensors]) -> float:
    """Return the sum over rounds of the entries that the target pushes: entry 0 of each tensor."""
    return math.fsum(float(value[0]) for release in seen for value in release.values())


@dataclass(frozen=True, eq=False)
class Game:
    """Two data sets that differ by one user, and what the attacker computes of the releases.

    Attributes:
        executor: holds the plan and what every unit answers with; the plan's pool is everybody.
        targets: keys of the one user's units; the other data set lacks them.
        rounds: of a run.
        statistic: a number from a run's releases; large means "in".
    """

    executor: PlantedExecutor
    targets: frozenset[int]
    rounds: int = 1
    statistic: Statistic = along_target

    def play(self, trials: int, seed: int = 0) -> tuple[Scores, Scores]:
        """Return (trials,) statistics of runs with the target, and of runs without."""
        plan = stepping_by_release(self.executor.plan)
        others = plan.pool[~np.isin(plan.pool, list(self.targets))]
        rng = np.random.default_rng(seed)
        seeds = rng.integers(2**62, size=(2, trials)).tolist()
        with_target = [self._run(plan, plan.pool, one) for one in seeds[0]]
        without = [self._run(plan, others, one) for one in seeds[1]]
        return np.array(with_target), np.array(without)

    def _run(self, plan: RoundPlan, pool: Keys, seed: int) -> float:
        run = replace(plan, pool=pool, seed=seed, entropy="seeded")  # so that it can be repeated
        layout = next(iter(self.executor.updates.values()))
        start = {name: torch.zeros_like(value) for name, value in layout.items()}
        return self.statistic(list(releases(run, self.executor, start, self.rounds)))


@dataclass(frozen=True, eq=False)
class RunGame(Game):
    """Whole runs of cyclic sampling, a target's own in each, by the likelihood ratio of the run.

    Attributes:
        law: how the attacker knows that units are drawn.
    """

    law: CyclicSampling = field(kw_only=True)

    def play(self, trials: int, seed: int = 0) -> tuple[Scores, Scores]:
        """Return (trials,) log-likelihood ratios of runs with the target, and of runs without."""
        replicas = Replicas(self.executor.plan, trials)
        plan = replace(replicas._plan, seed=seed)
        seen = releases(plan, replicas, replicas._parameters, self.rounds)
        cost = RoundCost(self.law, plan.noise_multiplier)
        scores = log_ratio_of_rounds(list(map(replicas._moved, seen)), cost, plan.matrix)
        return scores[:trials], scores[trials:]
