"""User-level sampling: DP-FedSGD, DP-FedAvg (McMahan et al. 2018; Charles et al. 2024, Alg. 2)."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.config import Config, StrategyConfig
from fedsim.materials import Materials
from fedsim.parts import build_estimator, build_sampling, public_size, user_task
from fedsim.plan import RoundPlan
from fedsim.strategy import private_plan
from fedsim.utils.section import MOST, Positive

UserSelection = Literal[
    "random", "longest", "shortest", "highest-perplexity", "lowest-perplexity", "random-chunk"
]


class UserStrategyConfig(StrategyConfig):
    """Keys of strategies whose units are users."""

    selection: UserSelection = "random"
    cohort_size: Positive | None = None
    """Expected number of users per round."""
    user_weight_cap: Annotated[int, Field(ge=1, le=MOST)] | None = None
    """Weight a user's update by min(number of the user's examples / cap, 1); by default all users
    have the same weight."""


class UserLevelSampling:
    """Sample users, with one clipped update per user."""

    options = UserStrategyConfig

    @staticmethod
    def build(config: Config, materials: Materials) -> RoundPlan:
        """Return the plan.

        The total weight W of the fixed denominator is the public number of users. With weights
        min(n_k/ŵ, 1) it is an upper bound, so the true weights stay private.

        Raises:
            ConfigError: cohort_size is missing or exceeds the population, δ is missing, or ε is
                unreachable.
        """
        declared, counted = config.privacy.declared_num_users, materials.split.num_users
        num_users, sentence = public_size(
            config, declared, counted, "privacy.declared_num_users", "users"
        )
        expected, sizes = config.strategy.expected_users, (num_users, counted)
        sampling = build_sampling(config, expected, sizes, "strategy.cohort_size", "users")
        return private_plan(
            config,
            materials,
            unit="user",
            pool=np.arange(counted, dtype=np.int64),
            population=num_users,
            sampling=sampling,
            task=user_task(config.strategy),
            estimator=build_estimator(config, sampling, num_users),
            assumptions=(sentence,),
        )
