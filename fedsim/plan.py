"""The frozen plan of a round: sampler, clip, denominator, noise and cost in one value.

The noise standard deviation is always `noise_multiplier * estimator.sensitivity(clip.bound)`, with
the bound slightly enlarged for rounding (`fedsim.noise`). The ledger's cost comes from the same
fields, so noise and cost cannot disagree. Plans without a proved price are refused here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedsim.accounting.accountants import choose
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.search import Search
from fedsim.clip_policy import AdaptiveClip, ClipPolicy, ConstantClip, NextClip
from fedsim.clipping import Clip
from fedsim.estimators import Estimator, WeightedSum
from fedsim.execution import Executor, TaskSpec
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix
from fedsim.noise.memory import NoiseMemory
from fedsim.noise.tolerance import ROUNDING_TOLERANCE
from fedsim.release import Release
from fedsim.sampling import CyclicSampling, PoissonSampling, Relation, Sampling
from fedsim.seeding import Coins, Draws, Hashes
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState

__all__ = ["RoundPlan", "TaskSpec"]


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """The plan of all rounds of a run: strategies build it, `run_round` executes it.

    `clip` is the clip of the first round; `at` returns the plan of a later round.

    Attributes:
        strategy: name of the strategy that built the plan.
        unit: unit of sampling; the guarantee is for a *user* in both cases.
        pool: (num_units,) int64, user or example indices in the data.
        sampling: chooses the units of a round.
        clip: bounds the update of one unit.
        clip_policy: how the clip changes from round to round.
        estimator: turns the sum into an estimate and states its sensitivity.
        noise_multiplier: noise standard deviation over sensitivity; 0 adds no noise.
        units_per_user: maximum number of pool units of one user (1, or the group size).
        relation: neighbouring relation of the guarantee.
        optimizer: the server's step.
        task: computation of one drawn unit; a custom executor may ignore it.
        seed: seed of addressed draws; set by `build_plan`, and secret if `entropy` is "secure".
        entropy: "secure" draws coins and noise from secret keys of the operating system. "seeded"
            draws them from the seed, for experiments that are repeated and compared; ε is then
            simulated.
        assumptions: sentences for the report, on the assumptions of the guarantee.
        dropped: number of training examples that the strategy leaves out, per reason.
        accountant: name of the accountant; None for the mechanism's own.
        addresses: (num_units,) uint64, the address of each unit for seeded coins; None for the
            index in the pool. `build_plan` sets digests of users' names and of examples.
        owners: (num_units,) integers, the user of each unit; None if each unit has its own user.
            A sampler that forms groups keeps a user's units together.
        search: the hyperparameter search that the run belongs to; None for a single run.
        score_noise_multiplier: noise multiplier of each private score of the model
            (`evaluation.private_scores`).
        score_rounds: rounds after which a private score is released, ascending.
        matrix: correlates the noise of the run's rounds; independent noise by default.
        memory: noise of earlier rounds, for correlated noise.
        wrapper: wraps the executor, given the run's draws; for example to test a round before
            anything is released.
        priced_questions: other queries of each round on private data, included in its price.

    Raises:
        ValueError: the combination has no proof, or fields disagree.

    Examples:
        >>> from fedsim import FixedDenominator, FlatClip, PoissonSampling, ServerOptimizer
        >>> plan = RoundPlan(
        ...     strategy="mine",
        ...     unit="user",
        ...     pool=np.arange(1000),
        ...     sampling=PoissonSampling(0.01),
        ...     task=TaskSpec(name="fedsgd", options={"group_size": 8}),
        ...     clip=FlatClip(l2_clip_norm=0.5),
        ...     estimator=FixedDenominator(0.01, 1000),
        ...     noise_multiplier=2.0,
        ...     units_per_user=1,
        ...     optimizer=ServerOptimizer("sgd", 1.0),
        ...     entropy="seeded",
        ... )
        >>> round(plan.noise_stddev, 4)  # 2.0 times 0.5 / (0.01 * 1000), and 0.4 % for rounding
        0.1004
        >>> plan.cost.units_per_user, plan.cost.noise_multiplier
        (1, 2.0)
        >>> list(plan.cohort(0)) == list(plan.cohort(0))  # seeded: the same coins at each call
        True
        >>> replace(plan, estimator=FixedDenominator(0.02, 1000))
        Traceback (most recent call last):
            ...
        ValueError: estimator.sampling_probability = 0.02: differs from sampling.probability = 0.01
    """

    strategy: str
    unit: Literal["user", "example"]
    pool: npt.NDArray[np.int64]
    sampling: Sampling
    clip: Clip
    estimator: Estimator
    noise_multiplier: float
    units_per_user: int
    optimizer: ServerOptimizer
    task: TaskSpec = field(default_factory=lambda: TaskSpec(name="own"))
    relation: Relation = Relation.ADD_OR_REMOVE
    seed: int = field(default=0, repr=False)
    entropy: Literal["seeded", "secure"] = "secure"
    clip_policy: ClipPolicy = field(default_factory=ConstantClip)
    assumptions: tuple[str, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    accountant: str | None = None
    addresses: Hashes | None = None
    owners: npt.NDArray[np.integer] | None = None
    search: Search | None = None
    score_noise_multiplier: float = 0.0
    score_rounds: tuple[int, ...] = ()
    matrix: NoiseMatrix = INDEPENDENT
    memory: NoiseMemory = field(default_factory=NoiseMemory, repr=False)
    wrapper: Callable[[Executor, Draws], Executor] | None = None
    priced_questions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_pool()
        if self.estimator.sampling_probability != self.sampling.probability:
            raise ValueError(
                f"estimator.sampling_probability = {self.estimator.sampling_probability}: "
                f"differs from sampling.probability = {self.sampling.probability}"
            )
        if self.units_per_user < 1:
            raise ValueError(f"units_per_user = {self.units_per_user}: must be at least 1")
        if reason := self.estimator.unproved(self.sampling, self.relation, self.units_per_user):
            raise ValueError(
                f"estimator.kind = {self.estimator.kind!r}: has no proved sensitivity for "
                f'{reason}; take "fixed"'
            )
        if self.relation is Relation.FIXED_GRAPH and self.unit == "user":
            raise ValueError(
                "relation = 'fixed-graph': user-level sampling has no proved price, because one "
                'owner\'s texts are in the updates of several users; take strategy "els"'
            )
        if reason := self.clip_policy.unproved(self.relation):
            raise ValueError(f"clip_policy: {reason}")
        if isinstance(self.sampling, CyclicSampling) and self.units_per_user > 1:
            self._check_owners()
        if self.matrix.feedback:
            self._check_correlation()
        if self.entropy == "secure" and not self.sampling.guaranteed:
            raise ValueError(
                f"entropy = 'secure' with {self.sampling.kind!r} sampling: secret coins would "
                'change the order of a pass in every round; take "seeded", or "balanced" sampling'
            )
        cost = self.cost  # raises for a mechanism without an event
        costs = [cost, *self._scores()]
        if self.noise_stddev:  # raises for an infinite bound, and a count that takes all the noise
            choose(costs, self.accountant, self.relation)  # raises if no accountant has a proof

    def _check_pool(self) -> None:
        if len(self.pool) == 0:
            raise ValueError("pool: is empty; give at least one unit")
        if not (np.diff(self.pool) > 0).all() and len(np.unique(self.pool)) < len(self.pool):
            raise ValueError(f"pool: has one {self.unit} twice, with coins for each; give it once")
        for name in ("addresses", "owners"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.pool):
                raise ValueError(
                    f"{name}: has {len(values)} entries, but the pool has {len(self.pool)} units"
                )

    def _scores(self) -> list[RoundCost]:
        """Check the private scores; return their cost unless a search pays for them."""
        if self.score_rounds and not (self.score_noise_multiplier > 0.0 < self.noise_multiplier):
            raise ValueError(
                f"score_noise_multiplier = {self.score_noise_multiplier}, noise_multiplier = "
                f"{self.noise_multiplier}: private scores need both; rounds without noise have no "
                "ε that could cover the scores"
            )
        if self.search is not None and self.score_rounds:
            paid = self.search.score_noise_multiplier, (self.search.rounds,)
            if paid != (self.score_noise_multiplier, self.score_rounds):
                raise ValueError(
                    f"search: pays for a score with noise multiplier {paid[0]} after rounds "
                    f"{paid[1]}, but the plan has noise multiplier {self.score_noise_multiplier} "
                    f"after rounds {self.score_rounds}"
                )
        return [cost for cost, _ in self.scores_after(0)]

    def _check_owners(self) -> None:
        """Raise `ValueError` unless every unit has an owner with at most `units_per_user` units."""
        if self.relation is Relation.FIXED_GRAPH:
            raise ValueError(
                "relation = 'fixed-graph', sampling.kind = 'cyclic', units_per_user = "
                f"{self.units_per_user}: cyclic sampling keeps an owner's units in one group, but "
                "a unit with several owners would be in several groups; "
                'take "poisson" sampling, or units_per_user = 1'
            )
        if (
            self.owners is None
            or np.unique(self.owners, return_counts=True)[1].max() > self.units_per_user
        ):
            raise ValueError(
                "owners: cyclic sampling needs the owner of each unit, with at most "
                f"units_per_user = {self.units_per_user} units each"
            )

    def _check_correlation(self) -> None:
        """Raise `ValueError` unless the price of the correlated noise is proved for this plan."""
        matrix, sampling = self.matrix, self.sampling
        field = f"privacy.mechanism = {matrix.kind!r}"
        if (
            not isinstance(sampling, CyclicSampling)
            or sampling.rounds != matrix.rounds
            or sampling.groups < matrix.separation
        ):
            raise ValueError(
                f"{field}: needs cyclic sampling of {matrix.rounds} rounds in {matrix.separation} "
                f"groups or more, to keep the rounds of one user apart; has {sampling}"
            )
        if matrix.kind == "blt" and (sampling.groups, sampling.charged_rate) != (
            matrix.separation,
            1.0,
        ):
            raise ValueError(
                f"{field}: only the price of whole groups is proved; needs cyclic "
                f"sampling in {matrix.separation} groups with rate or priced_rate = 1"
            )
        if isinstance(self.clip_policy, AdaptiveClip):
            raise ValueError(
                f"{field}: has no proof for an adaptive clip, which also releases counts; "
                "take a constant clip, or one on a schedule"
            )

    def around(self, executor: Executor) -> Executor:
        """Return the executor, wrapped by `wrapper` if the plan has one."""
        return executor if self.wrapper is None else self.wrapper(executor, self.draws)

    def at(self, state: ServerState) -> RoundPlan:
        """Return the plan of round `state.round`, with the clip and noise of that round."""
        if state.clip_scale == 1.0:
            return self
        return replace(self, clip=self.clip.scaled(state.clip_scale))

    def next_clip(self, state: ServerState, total: WeightedSum) -> NextClip:
        """Return the clip after round `state.round`, given that round's sum."""
        key = self.draws.noise(state.round, "clip")
        return self.clip_policy.after(state.round, state.clip_scale, total, key)

    @property
    def moving_clip_norm(self) -> float | None:
        """The norm up to which updates pass unclipped; None if it is the same in all rounds."""
        return None if self.clip_policy.constant else self.clip.norm

    @property
    def update_noise_multiplier(self) -> float:
        """Noise multiplier of the estimate; larger with an adaptive clip, which shares the cost."""
        return self.clip_policy.update_noise_multiplier(self.noise_multiplier)

    @cached_property
    def noise_stddev(self) -> float:
        """Standard deviation of a round's noise on each entry, as priced.

        With correlated noise a round draws `fresh_noise_stddev` and subtracts earlier noise.
        """
        if self.noise_multiplier == 0.0:
            return 0.0
        bound = self.clip.bound * (1.0 + ROUNDING_TOLERANCE)
        stddev = self.update_noise_multiplier * self.estimator.sensitivity(bound)
        if not 0.0 < stddev < float("inf"):
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier} with a clip bound of "
                f"{self.clip.bound}: noise needs a positive multiplier and a finite bound"
            )
        return stddev

    @property
    def fresh_noise_stddev(self) -> float:
        """Standard deviation of the noise that a round draws, before it subtracts earlier noise."""
        return self.noise_stddev * self.matrix.amplification

    def released_stddev(self, round: int) -> float:
        """Return the standard deviation of the noise in a round's release, with earlier noise."""
        return self.noise_stddev * self.matrix.round_error(round)

    def over_noise(self, release: Release, round: int) -> float | None:
        """Return the norm of a release over the root-mean-square norm of its noise.

        None without noise.
        """
        norm = self.released_stddev(round) * math.sqrt(release.num_entries)
        return release.norm / norm if norm else None

    @cached_property
    def cost(self) -> RoundCost:
        """Privacy cost of one round at user level (Charles et al. 2024, Theorems 1 and 2)."""
        return RoundCost(
            sampling=self.sampling,
            noise_multiplier=self.noise_multiplier,
            units_per_user=self.units_per_user,
            search=self.search,
        )

    @cached_property
    def score_cost(self) -> RoundCost:
        """Privacy cost of one private score: a Gaussian mechanism over all users."""
        return RoundCost(PoissonSampling(1.0), self.score_noise_multiplier)

    def scores_after(self, round: int) -> list[tuple[RoundCost, int]]:
        """Return the cost and the number of private scores still to be charged after `round`.

        Empty if there are none; the price of a search covers its trials' scores.
        """
        scores = sum(at > round for at in self.score_rounds) if self.search is None else 0
        return [(self.score_cost, scores)] if scores else []

    def charged_score(self, ledger: Ledger, round: int) -> Ledger:
        """Return the ledger, charged for the private score after `round` if there is one.

        The price of a search covers its trials' scores: they are not charged.
        """
        if round not in self.score_rounds or self.search is not None:
            return ledger
        return ledger.charge(round, self.score_cost, self.draws.score_release_id)

    @property
    def draws(self) -> Draws:
        """The source of the rounds' coins and noise.

        A repeated round has the same draws if they are seeded, or if the whole run has one price,
        which pays for each round once.
        """
        return Draws(self.seed, self.entropy, once=self.cost.run_rounds is not None)

    @property
    def coins(self) -> Coins:
        """The coins of the pool's units."""
        units = self.pool if self.addresses is None else self.addresses
        users = None if self.owners is None else self.owners.astype(np.uint64)
        return self.draws.coins(units.astype(np.uint64), users)

    def cohort(self, round: int) -> npt.NDArray[np.int64]:
        """Draw the units of a round; returns their indices in the data."""
        return self.pool[self.sampling.draw(len(self.pool), round, self.coins)]

    def earlier_noise(self, round: int, total: WeightedSum) -> NoiseMemory | None:
        """Return the earlier noise that a round's noise depends on; None for independent noise."""
        if not self.matrix.feedback or not self.noise_stddev:
            return None
        return self.memory.before(round, self.matrix, self.draws.noise, total.values)
