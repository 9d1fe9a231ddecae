"""User-level sampling: DP-FedSGD, DP-FedAvg (McMahan et al. 2018; Charles et al. 2024, Alg. 2)."""

from __future__ import annotations

import numpy as np

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.estimators import ClippedDenominator, Estimator, FixedDenominator
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.sampling import Sampling
from fedsim.strategy import (
    build_sampling,
    private_plan,
    public_size,
    refuse_unused,
    relation_of,
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
    refuse_unused(
        strategy,
        batch_size=strategy.batch_size,
        concentration_radius=strategy.concentration_radius,
    )
    declared, counted = config.privacy.declared_num_users, materials.split.num_users
    num_users, sentence = public_size(
        config, declared, counted, "privacy.declared_num_users", "users"
    )
    sampling = build_sampling(
        config, strategy.cohort_size, (num_users, counted), "strategy.cohort_size", "users"
    )
    return private_plan(
        config,
        materials,
        unit="user",
        pool=np.arange(counted, dtype=np.int64),
        population=num_users,
        sampling=sampling,
        task=user_task(strategy),
        estimator=_estimator(config, sampling, num_users),
        assumptions=(sentence,),
    )


def _estimator(config: Config, sampling: Sampling, num_users: int) -> Estimator:
    min_weight = config.strategy.estimator.min_weight
    if min_weight is None:
        return FixedDenominator(sampling.probability, num_users)
    estimator = ClippedDenominator(sampling.probability, min_weight)
    if reason := estimator.unproved(sampling, relation_of(config), units_per_user=1):
        raise ConfigError(
            f'strategy.estimator.kind = "clipped": {reason} has no proved bound; '
            'take kind = "fixed"'
        )
    return estimator
