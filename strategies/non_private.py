"""Training without clip and noise, as a baseline without a guarantee."""

from __future__ import annotations

from typing import Annotated, ClassVar, cast

import numpy as np
from pydantic import Field

from fedsim.clipping import NoClip
from fedsim.config import Config, FedAvg, FedSGD
from fedsim.data.selection import CohortRule
from fedsim.errors import ConfigError
from fedsim.estimators import FixedDenominator
from fedsim.materials import Materials
from fedsim.parts import server_optimizer, user_task
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.sampling import PoissonSampling, Wanted
from fedsim.strategies.els import ExampleStrategyConfig
from fedsim.strategies.uls import UserStrategyConfig


class NonPrivateConfig(UserStrategyConfig, ExampleStrategyConfig):
    """Keys of user-level and example-level sampling, so that configs of both work unchanged.

    `[privacy]`, `clip`, `estimator` and `sampling` are ignored.
    """

    selection: CohortRule = "random"  # type: ignore[assignment]
    local: Annotated[FedSGD | FedAvg, Field(discriminator="task")] = FedSGD()  # type: ignore[assignment]
    unread: ClassVar[tuple[str, ...]] = (
        *(f"privacy.{key}" for key in ("epsilon", "delta", "noise_multiplier", "relation")),
        *(f"privacy.{key}" for key in ("accountant", "mechanism", "bands", "buffers")),
        *(f"strategy.{key}" for key in ("clip", "estimator", "sampling")),
    )


class NonPrivate:
    """Sample users with `cohort_size`, or examples with `batch_size`, without a guarantee."""

    options = NonPrivateConfig

    @staticmethod
    def build(config: Config, materials: Materials) -> RoundPlan:
        """Return the plan.

        Raises:
            ConfigError: both or neither of cohort_size and batch_size are set, or it is too large.
        """
        strategy = cast(NonPrivateConfig, config.strategy)
        split = materials.split
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
        size, noun = len(pool), "users" if by_user else "examples"
        key = "cohort_size" if by_user else "batch_size"
        expected = strategy.cohort_size or strategy.batch_size
        rate = Wanted(expected, size, size, strategy.rounds, f"strategy.{key}", noun).rate
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
