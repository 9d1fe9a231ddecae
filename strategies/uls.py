"""User-level sampling: DP-FedSGD, DP-FedAvg (McMahan et al. 2018; Charles et al. 2024, Alg. 2)."""

from __future__ import annotations

import numpy as np

from fedsim.config import Config
from fedsim.estimators import ClippedDenominator, Estimator, FixedDenominator
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.sampling import PoissonSampling
from strategies.common import (
    build_clip,
    noise_multiplier,
    only,
    probability,
    public_size,
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
    only(strategy, batch_size=strategy.batch_size)
    num_users, sentence = public_size(
        config.privacy.declared_num_users,
        materials.split.num_users,
        "privacy.declared_num_users",
        "users",
    )
    q = probability(strategy.cohort_size, num_users, "strategy.cohort_size", "users")
    estimator: Estimator = (
        FixedDenominator(q, num_users)
        if strategy.estimator.min_weight is None
        else ClippedDenominator(q, strategy.estimator.min_weight)
    )
    return RoundPlan(
        strategy=strategy.name,
        unit="user",
        pool=np.arange(materials.split.num_users, dtype=np.int64),
        sampling=PoissonSampling(q),
        task=user_task(strategy),
        clip=build_clip(strategy.clip, materials.model),
        estimator=estimator,
        noise_multiplier=noise_multiplier(config, q, units_per_user=1),
        units_per_user=1,
        optimizer=server_optimizer(config),
        seed=config.seed,
        entropy=config.privacy.noise,
        assumptions=(sentence,),
    )
