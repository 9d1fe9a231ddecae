"""The same loop without clip and noise: the utility of training without a guarantee."""

from __future__ import annotations

import numpy as np

from fedsim.clipping import NoClip
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.estimators import FixedDenominator
from fedsim.materials import Materials
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.sampling import PoissonSampling
from fedsim.strategy import probability, server_optimizer, user_task


def build(config: Config, materials: Materials) -> RoundPlan:
    """Return the plan: `cohort_size` draws users, as uls does, `batch_size` any examples.

    `[privacy]`, `clip`, `estimator` and `sampling` are not read, so that another strategy's config
    serves as it is; the report says that there is no guarantee.

    Raises:
        ConfigError: not exactly one of cohort_size and batch_size, or too large a one.
    """
    strategy, split = config.strategy, materials.split
    if (strategy.cohort_size is None) == (strategy.batch_size is None):
        raise ConfigError(
            f"strategy.cohort_size = {strategy.cohort_size}, strategy.batch_size = "
            f"{strategy.batch_size}: non-private takes exactly one of the two"
        )
    by_user = strategy.cohort_size is not None
    pool = (
        np.arange(split.num_users, dtype=np.int64)
        if by_user
        else np.concatenate([split.user_examples(user) for user in range(split.num_users)])
    )
    rate = (
        probability(strategy.cohort_size, len(pool), "strategy.cohort_size", "users")
        if by_user
        else probability(strategy.batch_size, len(pool), "strategy.batch_size", "examples")
    )
    return RoundPlan(
        strategy=strategy.name,
        unit="user" if by_user else "example",
        pool=pool,
        sampling=PoissonSampling(rate),
        task=user_task(strategy) if by_user else TaskSpec(name="example-gradient"),
        clip=NoClip(),
        estimator=FixedDenominator(rate, len(pool)),
        noise_multiplier=0.0,
        units_per_user=1 if by_user else int(split.user_sizes.max()),
        optimizer=server_optimizer(config),
        entropy=config.privacy.noise,
    )
