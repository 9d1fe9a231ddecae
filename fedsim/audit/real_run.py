"""`fedsim audit CONFIG.toml`: train a real run with canary users, and bound its ε from below."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedsim.accounting.accountants import epsilon
from fedsim.audit.canaries import CanaryExecutor, draw_canaries, flip_coins, with_canaries
from fedsim.audit.one_run import OneRunBound, bound_from_canaries
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.grids.build import build_executor
from fedsim.materials import Materials, default_device, materials_of, new_data_seed
from fedsim.plan import RoundPlan
from fedsim.runner.launch import open_grid
from fedsim.runner.progress import CountProgress
from fedsim.runner.training import train
from fedsim.sampling import BalancedSampling, CyclicSampling, PoissonSampling, Relation
from fedsim.state import ServerState
from fedsim.strategy import build_plan, plan_terms

COIN_SEED = 0  # of canaries and coins; independent of the run's randomness
COINS = (
    "An independent fair coin decided whether each canary user was included; the rest of the run "
    "does not depend on the coins. The scores need not be independent (Steinke et al. 2023)."
)
LOW = "A low bound does not show that the ε is smaller: it only shows what this attack can prove."
UNSERVED = (
    "The audited training contains the canaries, and its model was not saved: do not publish it. "
    "No ε covers its releases about the real users, or the counts of this audit."
)
ASSUMPTIONS = (
    COINS,
    "The attacker of this audit sees all releases, knows each canary's update, and plants updates "
    "that texts could hardly cause.",
    "Canaries do not pass through the engine, so this audit does not test how it clips users' "
    "updates; --black-box does.",
    LOW,
    UNSERVED,
)


@dataclass(frozen=True)
class RunAudit:
    """The claim of a run, and the lower bound from its canaries.

    Attributes:
        statement: the claim in words: ε with all its terms.
        claimed_epsilon: claimed ε at `bound.delta`, by `accountant`.
        accountant: accountant of the claim.
        relation: neighbouring relation of the claim, in words.
        bound: the lower bound from the canaries.
        perfect: the bound that perfect scores would give, the largest possible one.
        could_refute: whether perfect scores would have refuted the claim.
        included: number of included canaries.
        rounds: number of rounds.
        attack: the attacker's observations.
        method: method of the bound: "steinke", or "f-dp" (Mahloujifar et al.).
        p_value: p-value of the claimed trade-off curve; None unless `method` is "f-dp".
        assumptions: sentences on the assumptions and the limits of the bound.
    """

    statement: str
    claimed_epsilon: float
    accountant: str
    relation: str
    bound: OneRunBound
    perfect: float
    could_refute: bool
    included: int
    rounds: int
    attack: str = "all releases"
    method: str = "steinke"
    p_value: float | None = None
    assumptions: tuple[str, ...] = ASSUMPTIONS

    @property
    def holds(self) -> bool:
        """Whether the audit does not refute the claim."""
        if self.p_value is not None and self.p_value < 1.0 - self.bound.confidence:
            return False
        return self.bound.epsilon <= self.claimed_epsilon

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "assumptions": list(self.assumptions), "holds": self.holds}


def audit_run(config: Config, num_canaries: int) -> RunAudit:
    """Train once with canaries, and return the lower bound.

    Args:
        config: config of a private run with Poisson, balanced or cyclic sampling.
        num_canaries: number of canary users, at least 2; about half of them take part.

    Raises:
        ConfigError: too few canaries, no noise, a shared ledger (an audit does not charge it), a
            clip that changes, or a sampler that does not draw users independently.
    """
    if config.strategy.clip.schedule is not None or config.strategy.clip.adaptive is not None:
        raise ConfigError(
            "strategy.clip: canaries need a constant clip; remove schedule and adaptive, or audit "
            "with --black-box"
        )
    materials, plan, delta = check(config, num_canaries)
    device = default_device(config.executor.gpus_per_worker)
    parameters = materials.model.initial_parameters()
    canaries = draw_canaries(parameters, plan.clip, num_canaries, COIN_SEED)
    included = flip_coins(num_canaries, COIN_SEED)
    planted, first_key, watch = with_canaries(plan, canaries, included)
    rounds = config.strategy.rounds
    # The canaries are added to the sum, which collectives leave on the workers.
    executor_keys = config.executor.model_copy(update={"reduce": "central"})
    config = config.model_copy(update={"executor": executor_keys})
    with open_grid(config.executor) as grid, CountProgress("audit", rounds) as bar:
        inner = build_executor(config, materials, plan, grid, device)
        executor = CanaryExecutor(inner, canaries, plan, first_key)
        train(ServerState(0, parameters), planted, executor, rounds, on_round=bar.advance)
    bound = bound_from_canaries(watch.scores, included, delta=delta)
    best = bound_from_canaries(included.astype(np.float64), included, delta=delta)
    return told(config, plan, (bound, best), int(included.sum()))


def told(
    config: Config,
    plan: RoundPlan,
    bounds: tuple[OneRunBound, OneRunBound],
    included: int,
) -> RunAudit:
    """Return the audit's result: the claim at the bounds' δ, with (actual, perfect) bounds."""
    bound, best = bounds
    rounds, terms = config.strategy.rounds, plan_terms(config, plan, scored=False)
    claimed = epsilon(plan.cost, rounds, bound.delta, terms.accountant, plan.relation)
    return RunAudit(
        statement=replace(terms, epsilon=claimed).sentence(),
        claimed_epsilon=claimed,
        accountant=terms.accountant,
        relation=terms.relation,
        bound=bound,
        perfect=best.epsilon,
        could_refute=best.epsilon > claimed,
        included=included,
        rounds=rounds,
    )


def check(config: Config, num_canaries: int) -> tuple[Materials, RoundPlan, float]:
    """Return materials, plan and δ of a run to audit.

    Raises:
        ConfigError: the run cannot be audited with canaries.
    """
    if num_canaries < 2:
        raise ConfigError(f"--canaries = {num_canaries}: give at least 2; hundreds are better")
    if config.privacy.shared is not None:
        raise ConfigError(
            "privacy.shared: an audit makes further releases about the real users, which it does "
            "not charge to the ledger; audit a config without privacy.shared"
        )
    if config.privacy.search is not None:
        raise ConfigError(
            "privacy.search: an audit tests one training, but this config's ε is for a whole "
            "search; audit a config without privacy.search"
        )
    materials = materials_of(config, new_data_seed(config))
    plan = build_plan(config, materials)
    if plan.noise_multiplier == 0.0 or config.privacy.delta is None:
        raise ConfigError("privacy: the run claims no ε, so there is nothing to audit")
    if not isinstance(plan.sampling, PoissonSampling | BalancedSampling | CyclicSampling):
        raise ConfigError(
            f"strategy.sampling.kind = {plan.sampling.kind!r}: canaries could change the cohort of "
            'the real users; take "poisson", "balanced" or "cyclic", which draw users independently'
        )
    if plan.relation is Relation.REPLACE:
        raise ConfigError(
            'privacy.relation = "replace-one": canaries are added or removed, not replaced; take '
            '"add-or-remove-one"'
        )
    return materials, plan, config.privacy.delta
