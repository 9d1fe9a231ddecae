"""The strategy of Asi & Liu (2024; Chua et al. 2024, Algorithm 3): noise by concentration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedsim.accounting.methods.above_threshold import failure_probability
from fedsim.concentration.filter import FilteredMean
from fedsim.concentration.sampling import ConcentratedSampling
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.strategy import not_hidden, private_plan, refuse_unused, user_task

MOST_BYTES = 4 * 2**30  # of all users' gradients, which a round holds at once

_ASSUMPTIONS = (
    "Half of the ε pays for AboveThreshold over the whole run; the other half, and the δ that is "
    "left by the probability that the test is wrong, for the Gaussian releases.",
    "The noise is scaled to 24 τ/N, the sensitivity proved here for users weighted by the filter. "
    "The scale printed in Algorithm 3 (Chua et al. 2024) is for coins and is not used.",
    "All rounds are charged before the first, however early the run halts.",
)


def build(config: Config, materials: Materials) -> RoundPlan:
    """Return the plan: all users, tested for concentration within τ, filtered, averaged, noised.

    Chua et al.'s Algorithm 3 with three changes, all for a proof: users are weighted by the
    filter's probability instead of drawn with it; the noise is scaled to what is proved
    (`FilteredMean`); and updates are clipped, which brings no two of them further apart.

    Raises:
        ConfigError: no τ or ε, what the proof does not cover, too few users for the ε, or more
            gradients than fit into memory.
    """
    strategy, privacy = config.strategy, config.privacy
    refuse_unused(
        strategy,
        cohort_size=strategy.cohort_size,
        batch_size=strategy.batch_size,
        user_weight_cap=strategy.user_weight_cap,
    )
    _refuse_uncovered(config)
    if strategy.concentration_radius is None or privacy.epsilon is None:
        raise ConfigError(
            f"strategy.concentration_radius = {strategy.concentration_radius}, privacy.epsilon = "
            f"{privacy.epsilon}: strategy 'asi-liu' needs both, the radius τ that gradients must "
            "be within and the ε that test and releases share"
        )
    num_users = materials.split.num_users
    _check_memory(num_users, materials)
    sampling = ConcentratedSampling(num_users, privacy.epsilon / 2.0, strategy.rounds)
    _check_population(config, sampling)
    return private_plan(
        config,
        materials,
        unit="user",
        pool=np.arange(num_users, dtype=np.int64),
        population=num_users,
        sampling=sampling,
        task=user_task(strategy),
        estimator=FilteredMean(strategy.concentration_radius, num_users),
        assumptions=(not_hidden(num_users, "users"), *_ASSUMPTIONS),
    )


def _refuse_uncovered(config: Config) -> None:
    strategy = config.strategy
    if strategy.sampling.kind != "poisson":  # the key's default; no user is sampled
        raise ConfigError(
            f"strategy.sampling.kind = {strategy.sampling.kind!r}: strategy 'asi-liu' takes all "
            "users every round; remove it"
        )
    if strategy.estimator.kind != "fixed":
        raise ConfigError(
            f"strategy.estimator.kind = {strategy.estimator.kind!r}: strategy 'asi-liu' has an "
            "estimator of its own; remove it"
        )
    if strategy.clip.schedule is not None or strategy.clip.adaptive is not None:
        raise ConfigError(
            "strategy.clip: strategy 'asi-liu' has noise of the concentration radius, not of the "
            "clip; remove schedule and adaptive"
        )


def _check_population(config: Config, sampling: ConcentratedSampling) -> None:
    declared, delta = config.privacy.declared_num_users, config.privacy.delta
    if declared is not None and declared != sampling.population:
        raise ConfigError(
            f"privacy.declared_num_users = {declared}: there are {sampling.population} users, and "
            "the proof of strategy 'asi-liu' rests on the true number; remove it"
        )
    wrong = failure_probability(sampling)
    if delta is not None and wrong >= delta:
        raise ConfigError(
            f"privacy.epsilon = {config.privacy.epsilon}, privacy.delta = {delta:g}: with "
            f"{sampling.population} users the test of strategy 'asi-liu' may be wrong with "
            f"probability {wrong:.2g}; it needs a larger epsilon, or "
            f"{_users_needed(sampling, config)} users"
        )


def _users_needed(sampling: ConcentratedSampling, config: Config) -> int:
    """Return a number of users, within 5 %, for which the test is sure enough."""
    delta = config.privacy.delta or 0.0
    least = failure_probability(replace(sampling, population=10**15))
    if least >= delta / 2.0:
        raise ConfigError(
            f"privacy.delta = {delta:g}: the test of strategy 'asi-liu' is wrong with probability "
            f"{least:.2g} whatever the number of users; it needs a larger delta"
        )
    while failure_probability(sampling) >= delta / 2.0:
        count = sampling.population + max(1, sampling.population // 20)
        sampling = replace(sampling, population=count)
    return sampling.population


def _check_memory(num_users: int, materials: Materials) -> None:
    parameters = sum(value.numel() for value in materials.model.initial_parameters().values())
    if (needed := 4 * num_users * parameters) > MOST_BYTES:
        raise ConfigError(
            f"strategy.name = 'asi-liu': holds the gradients of all {num_users} users at once, "
            f"{needed / 2**30:.1f} GiB for {parameters} parameters, more than "
            f"{MOST_BYTES / 2**30:g}; take fewer users, model.trainable or model.lora_rank"
        )
