"""Build a plan from a config: the code that all strategies share.

A strategy chooses the pool, the sampler, the task, the estimator and the assumptions of its
guarantee. `private_plan` fills in the rest from the config: clip, clip policy, noise multiplier,
relation, optimizer and the source of noise.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from fedsim.accounting.accountants import choose, epsilon_of_composition
from fedsim.accounting.statement import PrivacyTerms
from fedsim.clipping import Clip
from fedsim.config import Config
from fedsim.data.store import ranks
from fedsim.errors import ConfigError
from fedsim.estimators import Estimator
from fedsim.execution import Executor
from fedsim.materials import Materials
from fedsim.parts import (
    build_clip,
    clip_policy,
    noise_matrix,
    noise_multiplier,
    plug_ins,
    relation_of,
    score_noise,
    score_rounds,
    search_of,
    server_optimizer,
)
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.registry import part
from fedsim.sampling import CyclicSampling, Sampling, rounds_text
from fedsim.seeding import Draws, Hashes, hashes
from fedsim.server.automatic_rate import AutomaticRate
from fedsim.server.start_curvature import start_curvature
from fedsim.server_optimizer import AutomaticOptimizer
from fedsim.utils.json_text import digest


def build_plan(config: Config, materials: Materials) -> RoundPlan:
    """Return the plan that the config's strategy builds, with the seed of its releases.

    Raises:
        ConfigError: the strategy is unknown or refuses the config, the plan's price does not cover
            its pool, or there is noise but no finite ε.
    """
    strategy = part("strategies", config.strategy.name, "strategy.name")
    plan: RoundPlan = strategy.build(config, materials)
    _check(plan, config, materials)
    _check_finite(plan, config)
    seed = materials.seed
    if plan.entropy == "secure" and seed < 2**64:
        seed = secrets.randbits(128)  # the materials' seed is not a secret
    search = config.privacy.search
    if search is not None and search.trial is not None:  # trials of a search are independent
        seed = int(digest([seed, "trial", search.trial])[:32], 16)
    return replace(
        plan,
        assumptions=(*plan.assumptions, *plug_ins(config, plan)),
        seed=seed,
        addresses=_addresses(plan, materials) if plan.addresses is None else plan.addresses,
    )


def _addresses(plan: RoundPlan, materials: Materials) -> Hashes:
    """Return the address of each unit of a plan, (num_units,) uint64.

    A user's address is a digest of the name. An example's address is a digest of its user, its text
    and a counter that tells equal texts of one user apart.
    """
    store, pool = materials.store, plan.pool
    if plan.unit == "user":
        return store.user_keys[materials.split.users[pool]]
    users = np.searchsorted(store.user_offsets, pool, side="right") - 1
    addresses = hashes(store.user_keys[users], store.example_keys[pool])
    order = np.argsort(addresses, kind="stable")
    repeats = np.empty(len(pool), np.int64)
    repeats[order] = ranks(np.unique(addresses, return_counts=True)[1])
    return hashes(addresses, repeats)


def plan_terms(
    config: Config,
    plan: RoundPlan,
    epsilon: float = math.inf,
    *,
    scored: bool = True,
    drawn: bool = True,
) -> PrivacyTerms:
    """Return the terms of the privacy statement for all rounds of a plan, at the config's δ.

    Args:
        config: config of the plan.
        plan: the rounds.
        epsilon: ε to state; inf if no ε is certified, or if it is stated elsewhere.
        scored: whether ε covers the plan's private scores too.
        drawn: whether coins and noise are already drawn; if not, the statement calls none secret.
    """
    scores = plan.scores_after(0) if scored else []
    return PrivacyTerms.of(
        plan.cost,
        f"{plan.unit}s",
        rounds=config.strategy.rounds + sum(count for _, count in scores),
        others=scores,
        delta=config.privacy.delta,
        epsilon=epsilon,
        accountant=plan.accountant,
        relation=plan.relation,
        noise=plan.entropy if drawn or plan.entropy == "seeded" else None,
        unit=config.data.unit,
    )


def _check(plan: RoundPlan, config: Config, materials: Materials) -> None:
    """Raise `ConfigError` if the plan's price does not cover its pool.

    The pool may hold only training units, and at most `units_per_user` of one user.
    """
    where = f"strategy.name = {config.strategy.name!r}"
    split, store, pool = materials.split, materials.store, plan.pool
    optimizer = plan.optimizer
    if isinstance(optimizer, AutomaticOptimizer) and optimizer.rate is None and plan.noise_stddev:
        raise ConfigError(
            f"server.learning_rate: missing, and {where} has no automatic rate; give a rate"
        )
    trained = np.arange(split.num_users) if plan.unit == "user" else split.train_examples
    if not np.isin(pool, trained).all():
        raise ConfigError(f"{where}: pool: give training {plan.unit}s only")
    if plan.unit == "example" and plan.noise_multiplier > 0.0:
        users = np.searchsorted(store.user_offsets, pool, side="right")
        of_each = np.bincount(users) if store.graph is None else store.graph.degrees(pool)
        if of_each.max(initial=0) > plan.units_per_user:
            raise ConfigError(
                f"{where}: units_per_user = {plan.units_per_user}: a user has more units in the "
                "pool; give the maximum per user, and keep the pool within it"
            )


def _check_finite(plan: RoundPlan, config: Config) -> None:
    """Raise `ConfigError` if there is noise but no finite ε."""
    if plan.noise_multiplier == 0.0:
        return
    if (delta := config.privacy.delta) is None:
        raise ConfigError("privacy.delta: missing; a guarantee needs it, such as delta = 1e-5")
    costs = [(plan.cost, config.strategy.rounds), *plan.scores_after(0)]
    epsilon = epsilon_of_composition(costs, delta, plan.accountant, plan.relation)
    if not math.isfinite(epsilon):
        name = choose([cost for cost, _ in costs], plan.accountant, plan.relation)[0].name
        raise ConfigError(
            f"privacy.delta = {delta:g}: the {name} accountant certifies no finite ε at it for "
            f"{rounds_text(config.strategy.rounds)} with noise multiplier "
            f"{plan.noise_multiplier:g}; take a larger δ or more noise, or "
            "noise_multiplier = 0 for a run without a guarantee"
        )


_SHUFFLED = (
    "Cohorts were taken in shuffled passes. The ε is that of Poisson sampling at the same rate, "
    "another mechanism, as the papers print it: it is hypothetical, not a guarantee for this run. "
    'strategy.sampling.kind = "balanced" also uses every unit once a pass, and has a guarantee.'
)


def private_plan(
    config: Config,
    materials: Materials,
    *,
    unit: Literal["user", "example"],
    pool: npt.NDArray[np.int64],
    population: int,
    sampling: Sampling,
    task: TaskSpec,
    estimator: Estimator,
    units_per_user: int = 1,
    owners: npt.NDArray[np.integer] | None = None,
    assumptions: tuple[str, ...] = (),
    dropped: Mapping[str, int] | None = None,
    clip: Clip | None = None,
    wrapper: Callable[[Executor, Draws], Executor] | None = None,
    priced_questions: tuple[str, ...] = (),
) -> RoundPlan:
    """Return the plan of a strategy: the given fields, and all others from the config.

    The noise multiplier is the config's, or the smallest one that meets its ε with this sampler.

    Args:
        config: validated; `[privacy]`, `[server]` and `strategy.clip` are read here.
        materials: model, texts and split to train on.
        unit: unit of sampling.
        pool: (num_units,) the units' indices in the data.
        population: public number of units, for rates and denominators.
        sampling: chooses the units of a round.
        task: computation of one unit.
        estimator: turns a cohort's sum into an estimate; has the sampler's probability.
        units_per_user: maximum number of pool units of one user.
        owners: (num_units,) integers, the user of each unit; None if each unit has its own user.
        assumptions: sentences for the report, on the assumptions of the guarantee.
        dropped: number of training examples left out, per reason.
        clip: the clip; None for that of `strategy.clip`.
        wrapper: see `RoundPlan`.
        priced_questions: see `RoundPlan`.

    Raises:
        ConfigError: the clip or δ is missing, ε is unreachable, or the accountant or the relation
            has no proof for this sampler.
    """
    strategy = config.strategy
    if materials.store.graph is not None and not config.data.co_owned:
        raise ConfigError(
            "data.owners_column = None: the store has texts with several owners; set it, so that "
            "the guarantee covers all owners"
        )
    clip = clip or build_clip(config, materials.model)
    matrix = noise_matrix(config, sampling)
    search, scores = search_of(config), score_rounds(config)
    noise = noise_multiplier(config, sampling, units_per_user)
    if isinstance(sampling, CyclicSampling) and matrix.feedback:
        assumptions = (*assumptions, matrix.in_words(relation_of(config).unit, sampling.groups))
    if not any(re.match(rf"The number of [\w ]+, {population},", text) for text in assumptions):
        assumptions = (
            *assumptions,
            f"The number of {unit}s that rates and denominators use, {population}, is treated as "
            "public.",
        )
    try:
        plan = RoundPlan(
            strategy=strategy.name,
            unit=unit,
            pool=pool,
            sampling=sampling,
            task=task,
            clip=clip,
            clip_policy=clip_policy(config, clip, noise, sampling.probability * population),
            estimator=estimator,
            noise_multiplier=noise,
            units_per_user=units_per_user,
            relation=relation_of(config),
            optimizer=server_optimizer(config),
            entropy=config.privacy.noise,
            assumptions=assumptions if sampling.guaranteed else (*assumptions, _SHUFFLED),
            dropped=dropped or {},
            accountant=config.privacy.accounted_by,
            matrix=matrix,
            owners=owners,
            search=search,
            score_noise_multiplier=score_noise(config),
            score_rounds=scores,
            wrapper=wrapper,
            priced_questions=priced_questions,
        )
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"strategy.name = {strategy.name!r}: {error}") from error
    return _with_rate(plan, config, materials, sampling.probability * population)


def _with_rate(plan: RoundPlan, config: Config, materials: Materials, units: float) -> RoundPlan:
    """Return the plan with the public inputs of the automatic learning rate, if it has one."""
    if not isinstance(plan.optimizer, AutomaticOptimizer) or not plan.noise_stddev:
        return plan
    length = config.data.sequence_length
    examples = config.strategy.group_size if plan.unit == "user" else 1
    rate = AutomaticRate(
        curvature=cache(lambda: start_curvature(materials.model, length)),
        relative_noise=plan.noise_stddev / plan.clip.bound,
        units=units,
        tokens=examples * length,
    )
    return replace(plan, optimizer=replace(plan.optimizer, rate=rate))
