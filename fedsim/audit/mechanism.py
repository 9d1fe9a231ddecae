"""The exact mechanism, audited: a plan's rounds with a worst-case target in, and without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.accounting.accountants import choose, epsilon
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.search import Search
from fedsim.audit.bounds import LowerBound, bound_from_scores
from fedsim.audit.replicas import Replicas, seed_of
from fedsim.audit.worst_graph import listeners_share
from fedsim.clipping import FlatClip
from fedsim.estimators import FixedDenominator
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix, banded_matrix, buffered_matrix
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.sampling import BalancedSampling, CyclicSampling, PoissonSampling, Relation, Sampling
from fedsim.server_optimizer import ServerOptimizer

BLOCK = 125_000  # targets a run: enough to hide what a round costs, few enough for the caches
TRIALS = 750_000  # of either data set
DELTA = 1e-4
_CHOSEN_ON = 0.25


@dataclass(frozen=True)
class Setting:
    """A mechanism to audit: what a strategy's plan would hold.

    Attributes:
        strategy: "uls" or "els", for the table, and whether texts have several owners.
        sampling: of units.
        units_per_user: 1, or the group size of ELS.
        rounds: releases that the attacker sees.
        matrix: what correlates the noise.
        relation: of the claim. Under a fixed graph the target's units are not counted but found:
            what bounding leaves of a listener's texts (`worst_graph`).
        search: the search that is audited whole; None for one run.
    """

    strategy: str
    sampling: Sampling
    units_per_user: int
    rounds: int
    matrix: NoiseMatrix = INDEPENDENT
    relation: Relation = Relation.ADD_OR_REMOVE
    search: Search | None = None

    @property
    def target_units(self) -> int:
        """How many units of the target there are, whatever the plan claims."""
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
            relation=self.relation,
            search=self.search,
        )


SETTINGS = (
    Setting("uls", PoissonSampling(0.5), 1, 2),
    Setting("els", PoissonSampling(0.5), 4, 1),
    Setting("els, co-owned", PoissonSampling(0.5), 2, 2, relation=Relation.FIXED_GRAPH),
    Setting("uls", BalancedSampling(4, 2), 1, 4),
    Setting("uls", CyclicSampling(6, 2, 0.5), 1, 6, banded_matrix(6, 2)),
    Setting("uls", CyclicSampling(6, 2, 1.0), 1, 6, buffered_matrix(6, 2, 2)),
)
EPSILONS = (1.0, 4.0, 8.0)


@dataclass(frozen=True)
class MechanismAudit:
    """What was claimed of a mechanism, and what was shown of it.

    Attributes:
        strategy: of the plan.
        sampler: in words.
        sampling_probability: of a unit in a round.
        units_per_user: how many units of the target take part.
        rounds: releases seen.
        noise_multiplier: of the plan.
        trials: runs of either data set, those that chose the threshold included.
        claimed_epsilon: by the accountant, at `bound.delta`.
        accountant: its name.
        relation: of the claim, in words.
        bound: what the releases show.
    """

    strategy: str
    sampler: str
    sampling_probability: float
    units_per_user: int
    rounds: int
    noise_multiplier: float
    trials: int
    claimed_epsilon: float
    accountant: str
    relation: str
    bound: LowerBound

    @property
    def holds(self) -> bool:
        """Whether the claim survives."""
        return self.bound.epsilon <= self.claimed_epsilon

    @property
    def share(self) -> float:
        """The bound over the claim: how much of the claimed ε the attacker can be shown to have."""
        return self.bound.epsilon / self.claimed_epsilon


def audit_mechanism(
    plan: RoundPlan,
    rounds: int,
    *,
    delta: float,
    trials: int = TRIALS,
    confidence: float = 0.95,
    seed: int = 0,
    block: int = BLOCK,
    target_units: int | None = None,
) -> MechanismAudit:
    """Simulate `trials` runs of the plan's real rounds with the target in, and as many without.

    Args:
        plan: of a strategy or a `Setting`: Poisson, balanced or cyclic sampling, fixed denominator,
            noise.
        rounds: of one run.
        delta: at which the claim is made.
        trials: runs of each of the two neighbouring data sets; a quarter choose the threshold.
        confidence: of the bound.
        seed: of the whole audit.
        block: trials that share a round.
        target_units: of the target; None for as many as the plan claims.

    Raises:
        ValueError: a plan that `Replicas` or the likelihood ratio is not made for.
        ConfigError: the accountant refuses the plan, or a level out of range.
    """
    replicas = Replicas(plan, min(block, trials), target_units)
    runs = [
        replicas.scores(rounds, seed_of(seed, number))
        for number in range(-(-trials // min(block, trials)))
    ]
    scores_in, scores_out = (np.concatenate([run[arm] for run in runs])[:trials] for arm in (0, 1))
    accountant, relation = choose([plan.cost], None, plan.relation)
    return MechanismAudit(
        strategy=plan.strategy,
        sampler=plan.sampling.in_words(f"{plan.unit}s") + _noise(plan.matrix),
        sampling_probability=plan.sampling.probability,
        units_per_user=replicas.target_units,
        rounds=rounds,
        noise_multiplier=plan.noise_multiplier,
        trials=trials,
        claimed_epsilon=epsilon(plan.cost, rounds, delta, accountant.name, relation),
        accountant=accountant.name,
        relation=relation.phrase,
        bound=bound_from_scores(
            scores_in,
            scores_out,
            delta=delta,
            confidence=confidence,
            chosen_on=_CHOSEN_ON,
            seed=seed_of(seed, -1),
        ),
    )


def audit_settings(
    settings: Sequence[Setting] = SETTINGS,
    epsilons: Sequence[float] = EPSILONS,
    *,
    delta: float,
    trials: int,
    repetitions: int = 1,
) -> list[list[MechanismAudit]]:
    """Return, for each setting and ε, that many audits with fresh randomness."""
    return [
        [
            audit_mechanism(
                plan,
                setting.rounds,
                delta=delta,
                trials=trials,
                seed=repetition,
                target_units=units,
            )
            for repetition in range(repetitions)
        ]
        for setting in settings
        for units in [setting.target_units]
        for plan in [setting.plan(target, delta) for target in epsilons]
    ]


def _noise(matrix: NoiseMatrix) -> str:
    return f", {matrix.kind} noise" if matrix.feedback else ""
