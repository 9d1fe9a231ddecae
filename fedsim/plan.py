"""The frozen plan of a round: one value from which sampler, clip, denominator, noise and cost come.

No noise level or sampling rate is passed a second time. The noise standard deviation
exists only as `noise_multiplier * estimator.sensitivity(clip.bound)`, the bound a little larger for
the rounding of a sum (`fedsim.noise`), and the cost that the ledger is charged is made of the
same fields. A plan that cannot be kept is refused here.
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
from fedsim.sampling import CyclicSampling, PoissonSampling, Relation, Sampling
from fedsim.seeding import Coins, Draws, Hashes
from fedsim.server_optimizer import ServerOptimizer
from fedsim.state import ServerState
from fedsim.tensors import Tensors, l2_norm

__all__ = ["RoundPlan", "TaskSpec"]


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """What every round of a run does. Strategies build it; `run_round` carries it out.

    Its clip is that of the first round; `at` gives the plan of a later one.

    Attributes:
        strategy: the name of the strategy that built it.
        unit: what is sampled; the guarantee is for a *user* in either case.
        pool: (num_units,) int64, what the units are called in the data: user or example indices.
        sampling: which units take part in a round.
        clip: bounds what one unit adds.
        clip_policy: how the clip changes from round to round.
        estimator: turns the sum into an estimate, and knows its sensitivity.
        noise_multiplier: noise standard deviation over sensitivity; 0 adds none.
        units_per_user: the most units of the pool that belong to one user (1, or the group size).
        relation: which neighbouring data sets the guarantee is about.
        optimizer: the server's step.
        task: what one drawn unit computes; an executor of your own need not read it.
        seed: of addressed draws; `build_plan` sets it, and it is secret if `entropy` is secure.
        entropy: "secure" draws coins and noise from secret keys of the operating system; "seeded"
            from the seed, for experiments that are repeated and compared: ε is then simulated.
        assumptions: sentences that the guarantee rests on, for the report.
        dropped: training examples that the strategy leaves out, a count for each reason.
        accountant: what adds up the rounds, by name; None for the mechanism's own.
        addresses: (num_units,) uint64: who or what each unit is, as seeded coins know it; None:
            its index in the pool. `build_plan` gives digests of users' names and of examples.
        owners: (num_units,) integers: the user that each unit of the pool belongs to; None: each
            unit its own. A sampler of groups keeps a user's units together.
        search: the search that the run is a trial of; None for a run by itself.
        score_noise_multiplier: of each private score of the model: see `evaluation.private_scores`.
        score_rounds: after which such a score is released, ascending.
        matrix: correlates the noise of the run's rounds; independent noise by default.
        memory: of earlier rounds' noise, where it is correlated.
        wrapper: makes the executor that rounds use from the one that computes, and the run's draws,
            as one that tests a round before anything is released.
        priced_questions: what each round asks of private data beside the clipped sum, in the price
            of the round.

    Raises:
        ValueError: a combination without a proof, or fields that disagree.

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
        >>> list(plan.cohort(0)) == list(plan.cohort(0))  # seeded: the same coins again
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
                "relation = 'fixed-graph': has no proved price where users are sampled: one "
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
                f"entropy = 'secure' with {self.sampling.kind!r} sampling: the order of a pass is "
                'drawn again every round; take "seeded", or "balanced" sampling'
            )
        cost = self.cost  # refuses what has no event
        costs = [cost, *self._scores()]
        if self.noise_stddev:  # raises for an infinite bound, and a count that takes all the noise
            choose(costs, self.accountant, self.relation)  # raises for what has no proof

    def _check_pool(self) -> None:
        if len(self.pool) == 0:
            raise ValueError("pool: is empty, there is nothing to sample from")
        if not (np.diff(self.pool) > 0).all() and len(np.unique(self.pool)) < len(self.pool):
            raise ValueError(f"pool: has one {self.unit} twice, with coins for each; give it once")
        for name in ("addresses", "owners"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.pool):
                raise ValueError(f"{name}: {len(given)} for {len(self.pool)} units of the pool")

    def _scores(self) -> list[RoundCost]:
        """Check the private scores, and return their cost where no search pays for them."""
        if self.score_rounds and not (self.score_noise_multiplier > 0.0 < self.noise_multiplier):
            raise ValueError(
                f"score_noise_multiplier = {self.score_noise_multiplier}, noise_multiplier = "
                f"{self.noise_multiplier}: private scores need both; where rounds have no noise "
                "there is no ε that could cover them"
            )
        if self.search is not None and self.score_rounds:
            paid = self.search.score_noise_multiplier, (self.search.rounds,)
            if paid != (self.score_noise_multiplier, self.score_rounds):
                raise ValueError(
                    f"search: pays for a score of noise multiplier {paid[0]} after rounds "
                    f"{paid[1]}, and the plan's are {self.score_noise_multiplier} after "
                    f"{self.score_rounds}"
                )
        return [cost for cost, _ in self.scores_after(0)]

    def _check_owners(self) -> None:
        """Raise `ValueError` unless the owner of each unit is known, with few enough units."""
        if self.relation is Relation.FIXED_GRAPH:
            raise ValueError(
                "relation = 'fixed-graph', sampling.kind = 'cyclic', units_per_user = "
                f"{self.units_per_user}: keeps an owner's units in one group, which units with "
                'several owners cannot be; take "poisson" sampling, or units_per_user = 1'
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
        """Raise `ValueError` where correlated noise is not as private as the price says."""
        matrix, sampling = self.matrix, self.sampling
        field = f"privacy.mechanism = {matrix.kind!r}"
        if (
            not isinstance(sampling, CyclicSampling)
            or sampling.rounds != matrix.rounds
            or sampling.groups < matrix.separation
        ):
            raise ValueError(
                f"{field}: needs cyclic sampling of {matrix.rounds} rounds in {matrix.separation} "
                f"groups or more, to keep one's rounds apart; has {sampling}"
            )
        if matrix.kind == "blt" and (sampling.groups, sampling.charged_rate) != (
            matrix.separation,
            1.0,
        ):
            raise ValueError(
                f"{field}: no price below that of whole groups is proved here; needs cyclic "
                f"sampling in {matrix.separation} groups with rate or priced_rate = 1"
            )
        if isinstance(self.clip_policy, AdaptiveClip):
            raise ValueError(
                f"{field}: has no proof here for an adaptive clip, whose counts are released too; "
                "take a constant clip, or one on a schedule"
            )

    def around(self, executor: Executor) -> Executor:
        """Return the executor within the plan's own, if it has one."""
        return executor if self.wrapper is None else self.wrapper(executor, self.draws)

    def at(self, state: ServerState) -> RoundPlan:
        """Return the plan of the round that `state` is about to do: its clip, hence its noise.

        The plan itself where the clip is unchanged.
        """
        if state.clip_scale == 1.0:
            return self
        return replace(self, clip=self.clip.scaled(state.clip_scale))

    def next_clip(self, state: ServerState, total: WeightedSum) -> NextClip:
        """Return the next round's clip after the round that `state` was about to do."""
        key = self.draws.noise(state.round, "clip")
        return self.clip_policy.after(state.round, state.clip_scale, total, key)

    @property
    def moving_clip_norm(self) -> float | None:
        """The norm up to which updates pass unclipped; None where it is every round's."""
        return None if self.clip_policy.constant else self.clip.norm

    @property
    def update_noise_multiplier(self) -> float:
        """The multiplier of the estimate's noise: larger if an adaptive clip's count costs too."""
        return self.clip_policy.update_noise_multiplier(self.noise_multiplier)

    @cached_property
    def noise_stddev(self) -> float:
        """The standard deviation of a round's noise as it is priced, on each entry.

        With a matrix a round draws more, `fresh_noise_stddev`, and takes earlier noise back.
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
        """The standard deviation of what a round draws anew; correlated noise takes some back."""
        return self.noise_stddev * self.matrix.amplification

    def released_stddev(self, round: int) -> float:
        """Return the deviation of the noise in a round's release, earlier noise included."""
        return self.noise_stddev * self.matrix.round_error(round)

    def over_noise(self, release: Tensors, round: int) -> float | None:
        """Return the norm of a release over that of its noise, √(mean square); None without."""
        entries = sum(value.numel() for value in release.values())
        norm = self.released_stddev(round) * math.sqrt(entries)
        return l2_norm(release) / norm if norm else None

    @cached_property
    def cost(self) -> RoundCost:
        """What one round costs at user level (Charles et al. 2024, Theorems 1 and 2)."""
        return RoundCost(
            sampling=self.sampling,
            noise_multiplier=self.noise_multiplier,
            units_per_user=self.units_per_user,
            search=self.search,
        )

    @cached_property
    def score_cost(self) -> RoundCost:
        """What one private score costs: a Gaussian mechanism that every user is in."""
        return RoundCost(PoissonSampling(1.0), self.score_noise_multiplier)

    def scores_after(self, round: int) -> list[tuple[RoundCost, int]]:
        """Return the cost of the private scores after later rounds than this, and how many.

        Of those that are charged: a trial's are in its price.
        """
        scores = sum(at > round for at in self.score_rounds) if self.search is None else 0
        return [(self.score_cost, scores)] if scores else []

    def charged_score(self, ledger: Ledger, round: int) -> Ledger:
        """Return the ledger with the private score after so many rounds; a trial's is in its price.

        Itself where there is no score then.
        """
        if round not in self.score_rounds or self.search is not None:
            return ledger
        return ledger.charge(round, self.score_cost, self.draws.score_release_id)

    @property
    def draws(self) -> Draws:
        """Where coins and noise of its rounds come from.

        A round that is done again has the same ones where they are seeded, and with secure noise
        where a whole run has one price: that pays for each round once.
        """
        return Draws(self.seed, self.entropy, once=self.cost.run_rounds is not None)

    @property
    def coins(self) -> Coins:
        """The coins of the pool's units."""
        units = self.pool if self.addresses is None else self.addresses
        users = None if self.owners is None else self.owners.astype(np.uint64)
        return self.draws.coins(units.astype(np.uint64), users)

    def cohort(self, round: int) -> npt.NDArray[np.int64]:
        """Draw the units of a round, by their indices in the data."""
        return self.pool[self.sampling.draw(len(self.pool), round, self.coins)]

    def earlier_noise(self, round: int, total: WeightedSum) -> NoiseMemory | None:
        """Return the memory from which a round's noise is made; None for independent noise."""
        if not self.matrix.feedback or not self.noise_stddev:
            return None
        return self.memory.before(round, self.matrix, self.draws.noise, total.values)
