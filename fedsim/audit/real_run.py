"""`fedsim audit CONFIG.toml`: a real run, canary users among its own, and what they prove."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedsim.accounting.accountants import epsilon
from fedsim.audit.canaries import CanaryExecutor, draw_canaries, flip_coins, with_canaries
from fedsim.audit.one_run import OneRunBound, bound_from_canaries
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.grids.executor import build_executor
from fedsim.materials import Materials, default_device, materials_of, new_data_seed
from fedsim.plan import RoundPlan
from fedsim.runner.launch import open_grid
from fedsim.runner.progress import CountProgress
from fedsim.runner.training import train
from fedsim.sampling import BalancedSampling, CyclicSampling, PoissonSampling, Relation
from fedsim.state import ServerState
from fedsim.strategy import build_plan, plan_terms

COINS = (
    "Each canary user was put in or left out by its own fair coin; nothing else of the run "
    "depends on the coins. No independence of the scores is assumed (Steinke et al. 2023)."
)
LOW = "A low bound does not show that the ε is smaller: it is what this attack could prove."
UNSERVED = (
    "The audited training contains the canaries and was not saved: it is no model to serve. No ε "
    "pays for what it released of the real users, nor for the counts of this audit."
)
ASSUMPTIONS = (
    COINS,
    "The attacker of this audit sees every release, knows each canary's update, and plants it "
    "in the space of updates, where text could hardly reach.",
    "Canaries do not pass through the engine: whether it clips the users' own updates is not "
    "looked at here; --black-box does.",
    LOW,
    UNSERVED,
)


@dataclass(frozen=True)
class RunAudit:
    """What a run claims, and what its canaries show.

    Attributes:
        statement: the claim in words: ε with all its terms.
        claimed_epsilon: at `bound.delta`, by `accountant`.
        accountant: of the claim.
        relation: of the claim, in words.
        bound: from the canaries.
        perfect: the same bound of scores that tell every coin: nothing above it can be shown.
        could_refute: whether such scores would have refuted the claim.
        included: how many canaries the coins put in.
        coin_seed: of canaries and coins; another one is another, fresh audit of the same run.
        rounds: of the training.
        attack: what the attacker saw.
        method: of the bound: "steinke", or "f-dp" (Mahloujifar et al.).
        p_value: of the claimed trade-off curve, where `method` tests that.
        assumptions: what the bound rests on, and what it does not say.
    """

    statement: str
    claimed_epsilon: float
    accountant: str
    relation: str
    bound: OneRunBound
    perfect: float
    could_refute: bool
    included: int
    coin_seed: int
    rounds: int
    attack: str = "all releases"
    method: str = "steinke"
    p_value: float | None = None
    assumptions: tuple[str, ...] = ASSUMPTIONS

    @property
    def holds(self) -> bool:
        """Whether the claim survives."""
        if self.p_value is not None and self.p_value < 1.0 - self.bound.confidence:
            return False
        return self.bound.epsilon <= self.claimed_epsilon

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {**asdict(self), "assumptions": list(self.assumptions), "holds": self.holds}


def audit_run(config: Config, num_canaries: int, *, coin_seed: int = 0) -> RunAudit:
    """Train once as the config says, canaries added, and return the lower bound.

    Args:
        config: of a private run with Poisson, balanced or cyclic sampling.
        num_canaries: users whose coins are flipped; about half take part. At least 2.
        coin_seed: of canaries and coins: never the run's own randomness.

    Raises:
        ConfigError: too few canaries, no noise, a shared ledger, which an audit would not
            charge, or a sampler whose law depends on who is there.
    """
    if config.strategy.clip.schedule is not None or config.strategy.clip.adaptive is not None:
        raise ConfigError(
            "strategy.clip: canaries push by the bound of a clip that stays; remove schedule and "
            "adaptive, or audit by --black-box"
        )
    materials, plan, delta = check(config, num_canaries)
    device = default_device(config.executor.gpus_per_worker)
    parameters = materials.model.initial_parameters()
    canaries = draw_canaries(parameters, plan.clip, num_canaries, coin_seed)
    included = flip_coins(num_canaries, coin_seed)
    planted, first_key, watch = with_canaries(plan, canaries, included)
    rounds = config.strategy.rounds
    with open_grid(config.executor) as grid, CountProgress("audit", rounds) as bar:
        inner = build_executor(config, materials, plan, grid, device)
        executor = CanaryExecutor(inner, canaries, plan, first_key)
        train(ServerState(0, parameters), planted, executor, rounds, on_round=bar.advance)
    bound = bound_from_canaries(watch.scores, included, delta=delta)
    best = bound_from_canaries(included.astype(np.float64), included, delta=delta)
    return told(config, plan, (bound, best), int(included.sum()), coin_seed)


def told(
    config: Config,
    plan: RoundPlan,
    bounds: tuple[OneRunBound, OneRunBound],
    included: int,
    coin_seed: int,
) -> RunAudit:
    """Return what the run claims at its δ, which is that of the bounds: the shown and the best."""
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
        coin_seed=coin_seed,
        rounds=rounds,
    )


def check(config: Config, num_canaries: int) -> tuple[Materials, RoundPlan, float]:
    """Return materials, plan and δ of a run that canaries may join.

    Raises:
        ConfigError: they may not.
    """
    if num_canaries < 2:
        raise ConfigError(f"--canaries = {num_canaries}: give at least 2, better hundreds")
    if config.privacy.shared is not None:
        raise ConfigError(
            "privacy.shared: an audit makes releases of its own on the real users, which that "
            "ledger would not know of; audit a config without it"
        )
    if config.privacy.search is not None:
        raise ConfigError(
            "privacy.search: an audit is of one training, and this config's ε is that of a "
            "search; audit a config without it"
        )
    materials = materials_of(config, new_data_seed(config))
    plan = build_plan(config, materials)
    if plan.noise_multiplier == 0.0 or config.privacy.delta is None:
        raise ConfigError("privacy: the run claims no ε, so there is nothing to audit")
    if not isinstance(plan.sampling, PoissonSampling | BalancedSampling | CyclicSampling):
        raise ConfigError(
            f"strategy.sampling.kind = {plan.sampling.kind!r}: canaries could change the cohort of "
            'the real users; take "poisson", "balanced" or "cyclic", where each user draws alone'
        )
    if plan.relation is Relation.REPLACE:
        raise ConfigError(
            'privacy.relation = "replace-one": a canary is there or is not; '
            'take "add-or-remove-one"'
        )
    return materials, plan, config.privacy.delta
