"""The exact mechanism, audited: a plan's rounds with a worst-case target in, and without it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.accounting.accountants import choose, epsilon
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.search import Search
from fedsim.clip_policy import ClipPolicy, ClipSchedule, ConstantClip
from fedsim.clipping import FlatClip
from fedsim.estimators import FixedDenominator
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix, banded_matrix, buffered_matrix
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.sampling import BalancedSampling, CyclicSampling, PoissonSampling, Relation, Sampling
from fedsim.server_optimizer import ServerOptimizer
from tests.privacy.mechanism_audit.bounds import LowerBound, bound_from_scores
from tests.privacy.mechanism_audit.replicas import Replicas, seed_of
from tests.privacy.mechanism_audit.worst_graph import listeners_share

DELTA = 1e-4
CONSTANT = ConstantClip()
_CHOSEN_ON = 0.25


@dataclass(frozen=True)
class Setting:
    """A mechanism to audit.

    Attributes:
        strategy: a name for the test's id.
        sampling: of units.
        units_per_user: 1, or the group size of ELS.
        rounds: releases that the attacker sees.
        matrix: of the correlated noise.
        clip_policy: how the clip moves.
        relation: of the claim. Under a fixed graph the target's units are those that bounding
            leaves of a listener's texts (`worst_graph`).
        search: the search that is audited whole; None for one run.
    """

    strategy: str
    sampling: Sampling
    units_per_user: int
    rounds: int
    matrix: NoiseMatrix = INDEPENDENT
    clip_policy: ClipPolicy = CONSTANT
    relation: Relation = Relation.ADD_OR_REMOVE
    search: Search | None = None

    @property
    def target_units(self) -> int:
        """Number of units of the target, whatever the plan claims."""
        if self.relation is not Relation.FIXED_GRAPH:
            return self.units_per_user
        return len(listeners_share(self.units_per_user)[1])

    def plan(self, target_epsilon: float, delta: float) -> RoundPlan:
        """Return a plan whose rounds together are calibrated to (target_epsilon, delta)."""
        noise_multiplier = calibrate_noise_multiplier(
            sampling=self.sampling,
            units_per_user=self.units_per_user,
            rounds=self.rounds,
            epsilon=target_epsilon,
            delta=delta,
            relation=self.relation,
            search=self.search,
        )
        return RoundPlan(
            strategy=self.strategy,
            unit="user" if self.units_per_user == 1 else "example",
            pool=np.arange(1, dtype=np.int64),
            sampling=self.sampling,
            task=TaskSpec(name="planted"),
            clip=FlatClip(l2_clip_norm=0.5),
            estimator=FixedDenominator(self.sampling.probability, 1000.0),
            noise_multiplier=noise_multiplier,
            units_per_user=self.units_per_user,
            optimizer=ServerOptimizer("sgd", 1.0),
            entropy="seeded",
            matrix=self.matrix,
            clip_policy=self.clip_policy,
            relation=self.relation,
            search=self.search,
        )


FALLING = ClipSchedule("exponential", 0.1, 6)

SETTINGS = (
    Setting("uls", PoissonSampling(0.5), 1, 2),
    Setting("els", PoissonSampling(0.5), 4, 1),
    Setting("els, co-owned", PoissonSampling(0.5), 2, 2, relation=Relation.FIXED_GRAPH),
    Setting("uls", BalancedSampling(4, 2), 1, 4),
    Setting("uls", BalancedSampling(5, 2), 1, 5),
    Setting("uls", CyclicSampling(6, 2, 0.5), 1, 6, banded_matrix(6, 2)),
    Setting("uls", CyclicSampling(6, 2, 0.5), 1, 6, banded_matrix(6, 2), FALLING),
    Setting("uls", CyclicSampling(6, 2, 1.0), 1, 6, buffered_matrix(6, 2, 2)),
)


@dataclass(frozen=True)
class MechanismAudit:
    """The claim for a mechanism, and the bound that its releases show.

    Attributes:
        units_per_user: units of the target that take part.
        claimed_epsilon: by the accountant, at `bound.delta`.
        relation: of the claim, in words.
        bound: from the releases.
    """

    units_per_user: int
    claimed_epsilon: float
    relation: str
    bound: LowerBound

    @property
    def holds(self) -> bool:
        """Whether the bound is within the claim."""
        return self.bound.epsilon <= self.claimed_epsilon

    @property
    def share(self) -> float:
        """The bound over the claim."""
        return self.bound.epsilon / self.claimed_epsilon


def audit_mechanism(
    plan: RoundPlan,
    rounds: int,
    *,
    delta: float,
    trials: int,
    seed: int = 0,
    target_units: int | None = None,
) -> MechanismAudit:
    """Simulate `trials` runs of the plan's real rounds with the target in, and as many without.

    Args:
        plan: Poisson, balanced or cyclic sampling, fixed denominator, noise.
        rounds: of one run.
        delta: of the claim.
        trials: runs of each of the two neighbouring data sets; a quarter choose the threshold.
        seed: of the whole audit.
        target_units: of the target; None for as many as the plan claims.
    """
    replicas = Replicas(plan, trials, target_units)
    scores_in, scores_out = replicas.scores(rounds, seed_of(seed, 0))
    accountant, relation = choose([plan.cost], None, plan.relation)
    return MechanismAudit(
        units_per_user=replicas.target_units,
        claimed_epsilon=epsilon(plan.cost, rounds, delta, accountant.name, relation),
        relation=relation.phrase,
        bound=bound_from_scores(
            scores_in, scores_out, delta=delta, chosen_on=_CHOSEN_ON, seed=seed_of(seed, -1)
        ),
    )
