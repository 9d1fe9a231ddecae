"""Many independent pairs of neighbouring data sets in one real round.

Every target pushes a coordinate (one in each layer, where layers are clipped apart) that nobody
else touches. With its own coins and the coordinate's own noise, a target's component of the
release is one draw from "target in", and the component of a target left out one from "target
out", independent of all others. So a round of a hundred thousand targets is a hundred thousand
trials at the price of one.

Everything of the round is real: draw, clip, estimator, noise, ledger, step. What a target's unit
adds is computed once, by `execution.Accumulator`, and put where it belongs; units add up, as a
`WeightedSum` is a monoid (`test_replicas_are_what_the_accumulator_adds`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from fedsim.audit.canaries import planted_unit
from fedsim.audit.likelihood import log_ratio_of_rounds
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Executor, Keys
from fedsim.plan import RoundPlan
from fedsim.round import run_round
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState
from fedsim.tensors import Tensors, l2_norm, scale
from tests.privacy.mechanism_audit.bounds import Scores
from tests.privacy.mechanism_audit.searches import searched_scores


class Replicas:
    """An audit's trials of a plan's round: `num_targets` with their target in, as many without.

    Args:
        plan: whose sampling, clip, estimator and noise are audited; pool, optimizer and seed are
            the audit's own.
        num_targets: pairs of trials a run.
        target_units: units of a target; None for as many as the plan claims.

    Raises:
        ValueError: a denominator that depends on who was drawn: targets would not be independent.
    """

    def __init__(self, plan: RoundPlan, num_targets: int, target_units: int | None = None) -> None:
        if plan.estimator.kind != "fixed":
            raise ValueError(f'estimator.kind = {plan.estimator.kind!r}: replicas need "fixed"')
        self.target_units = plan.units_per_user if target_units is None else target_units
        self._coordinates = 2 * num_targets
        self._targets = num_targets
        self._parameters = {
            name: torch.zeros(self._coordinates, dtype=torch.float64)
            for name in planted_unit(plan.clip)
        }
        self._clip = plan.clip  # of the last round
        everybody = np.arange(num_targets * self.target_units, dtype=np.int64)
        self._plan = stepping_by_release(replace(plan, pool=everybody, addresses=None, owners=None))

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        """Return the sum over the drawn units: units of one target share its coordinate."""
        drawn = np.bincount(cohort // self.target_units, minlength=self._coordinates)
        self._clip = clip
        values = {
            name: torch.from_numpy(drawn * float(added))
            for name, added in planted_unit(clip).items()
        }
        return WeightedSum(values, weight=float(len(cohort)), num_units=len(cohort))

    def scores(self, rounds: int, seed: int) -> tuple[Scores, Scores]:
        """Return (num_targets,) log-likelihood ratios of runs, with the target and without.

        Of a plan with a search, of the best of each replica's trials: see `searches`.
        """
        if self._plan.search is None:
            return self._of_run(rounds, seed)

        def trial(number: int) -> tuple[Scores, Scores]:
            return self._of_run(rounds, seed_of(seed, number))

        return searched_scores(self._plan.search, trial, self._targets, seed)

    def _of_run(self, rounds: int, seed: int) -> tuple[Scores, Scores]:
        plan = replace(self._plan, seed=seed, entropy="seeded")  # so that it can be repeated
        seen = releases(plan, self, self._parameters, rounds)
        total = log_ratio_of_rounds(list(map(self._moved, seen)), plan.cost, plan.matrix)
        return total[: self._targets], total[self._targets :]

    def _moved(self, release: Tensors) -> Scores:
        """Return (coordinates,): the last release along each target's push over a unit's move."""
        alone = WeightedSum(planted_unit(self._clip), weight=1.0, num_units=1)
        one = scale(alone.values, self._plan.estimator.factor(alone))
        square = l2_norm(one) ** 2
        along = sum(release[name].numpy() * (float(one[name]) / square) for name in one)
        return np.asarray(along, dtype=np.float64)


def seed_of(seed: int, number: int) -> int:
    """Return a seed of its own for each run of an audit, or trial of a run."""
    digest = hashlib.sha256(f"audit/{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def stepping_by_release(plan: RoundPlan) -> RoundPlan:
    """Return the plan with SGD at rate 1, so that a step is the release itself."""
    return replace(plan, optimizer=ServerOptimizer("sgd", 1.0), entropy="seeded")


def releases(
    plan: RoundPlan, executor: Executor, parameters: Tensors, rounds: int
) -> Iterator[Tensors]:
    """Yield each round's release of a plan that is `stepping_by_release`.

    Args:
        plan: of the rounds.
        executor: computes the clipped sum.
        parameters: the start, float64 so that differences of steps lose nothing.
        rounds: number of rounds.
    """
    state = ServerState(0, parameters)
    for _ in range(rounds):
        before = state.parameters
        state, _ = run_round(state, plan, executor)
        yield {name: before[name] - after for name, after in state.parameters.items()}
