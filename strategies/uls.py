"""User-level sampling: DP-FedSGD, DP-FedAvg (McMahan et al. 2018; Charles et al. 2024, Alg. 2)."""

from __future__ import annotations

import numpy as np

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.estimators import ClippedDenominator, Estimator, FixedDenominator
from fedsim.materials import Materials
from fedsim.plan import RoundPlan, unproved_clipped_denominator
from fedsim.sampling import Sampling
from strategies.common import (
    assumptions,
    build_clip,
    clip_policy,
    neighbours,
    noise_multiplier,
    only,
    public_size,
    sampling,
    server_optimizer,
    user_task,
)


def build(config: Config, materials: Materials) -> RoundPlan:
    """Return the plan: coins on users, one clipped update a user, sensitivity of one user.

    The total weight W of the fixed denominator is the public number of users: an upper bound
    where users are weighted by min(n_k/ŵ, 1), so the true weights stay private.

    Raises:
        ConfigError: cohort_size missing or over the population, no δ, an unreachable ε.
    """
    strategy = config.strategy
    only(
        strategy,
        batch_size=strategy.batch_size,
        concentration_radius=strategy.concentration_radius,
    )
    num_users, sentence = public_size(
        config,
        config.privacy.declared_num_users,
        materials.split.num_users,
        "privacy.declared_num_users",
        "users",
    )
    sizes = (num_users, materials.split.num_users)
    law = sampling(config, strategy.cohort_size, sizes, "strategy.cohort_size", "users")
    clip = build_clip(strategy.clip, materials.model)
    noise = noise_multiplier(config, law, units_per_user=1)
    return RoundPlan(
        strategy=strategy.name,
        unit="user",
        pool=np.arange(materials.split.num_users, dtype=np.int64),
        sampling=law,
        task=user_task(strategy),
        clip=clip,
        clip_policy=clip_policy(config, clip, noise, law.probability * num_users),
        estimator=_estimator(config, law, num_users),
        noise_multiplier=noise,
        units_per_user=1,
        relation=neighbours(config),
        optimizer=server_optimizer(config),
        entropy=config.privacy.noise,
        assumptions=assumptions(law, sentence),
        accountant=config.privacy.accountant,
    )


def _estimator(config: Config, law: Sampling, num_users: int) -> Estimator:
    min_weight = config.strategy.estimator.min_weight
    if min_weight is None:
        return FixedDenominator(law.probability, num_users)
    if reason := unproved_clipped_denominator(law, neighbours(config), units_per_user=1):
        raise ConfigError(
            f'strategy.estimator.kind = "clipped": {reason} has no proved bound; '
            'take kind = "fixed"'
        )
    return ClippedDenominator(law.probability, min_weight)
