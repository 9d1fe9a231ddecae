"""A task, and the strategy that asks for it: local steps of one length.

A user takes steps of `step_length` along its normalised gradient and sends the difference, so
users with steep losses move as far as others. Sampler, clip, denominator, noise and cost are those
of user-level sampling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field

from fedsim import (
    Config,
    ConfigError,
    Materials,
    RoundPlan,
    StrategyConfig,
    TaskSpec,
    Unit,
    Update,
    build_estimator,
    build_sampling,
    private_plan,
)
from fedsim.clients.tasks import UserTask, mean_gradient


class NormalisedSteps(UserTask):
    """Steps along the gradient of all of a unit's examples; units come from `UserTask`.

    A model with dropout uses the same dropout masks in each step.

    Attributes:
        averages_gradients: false, so that no engine computes a gradient in place of `update`.
    """

    averages_gradients: ClassVar[bool] = False

    def __init__(
        self, materials: Materials, *, group_size: int, steps: int, step_length: float
    ) -> None:
        super().__init__(materials, group_size=group_size)
        self._steps, self._step_length = steps, step_length

    def update(self, parameters: Mapping[str, torch.Tensor], unit: Unit, round: int) -> Update:
        """Return θ_server − θ_local; the server's optimizer takes it as a gradient."""
        local = dict(parameters)
        loss, num_gradients = 0.0, 0
        for step in range(self._steps):
            mean = mean_gradient(self.model, local, unit)  # zero for a unit without examples
            if step == 0:
                loss = mean.loss
            num_gradients += mean.num_gradients
            norm = sum(float(value.square().sum()) for value in mean.values.values()) ** 0.5
            scale = self._step_length / norm if norm > 0.0 else 0.0
            for name, gradient in mean.values.items():
                local[name] = local[name] - scale * gradient
        moved = {name: value - local[name] for name, value in parameters.items()}
        return Update(moved, loss=loss, num_gradients=num_gradients)


class NormalisedConfig(StrategyConfig):
    """Keys of `uls-normalised`."""

    cohort_size: Annotated[float, Field(gt=0.0)]
    """Expected number of users per round."""
    steps: Annotated[int, Field(ge=1)] = 1
    """Number of local steps."""
    step_length: Annotated[float, Field(gt=0.0)] = 0.1
    """Euclidean length of a local step."""


class UserLevelNormalised:
    """A coin for each user, one clipped difference per user."""

    options = NormalisedConfig

    @staticmethod
    def build(config: Config, materials: Materials) -> RoundPlan:
        """Return the plan.

        Raises:
            ConfigError: a key is missing or does not apply.
        """
        strategy, num_users = config.strategy, config.privacy.declared_num_users
        assert isinstance(strategy, NormalisedConfig)
        if strategy.local.task != "fedsgd":
            raise ConfigError("strategy.local: leave it out; give strategy.steps and step_length")
        if num_users is None:
            raise ConfigError("privacy.declared_num_users: missing; give a public number of users")
        sizes = num_users, materials.split.num_users
        expected = strategy.cohort_size
        sampling = build_sampling(config, expected, sizes, "strategy.cohort_size", "users")
        return private_plan(
            config,
            materials,
            unit="user",
            pool=np.arange(materials.split.num_users, dtype=np.int64),
            population=num_users,
            sampling=sampling,
            task=TaskSpec(
                name="example-normalised",
                options={
                    "group_size": strategy.group_size,
                    "steps": strategy.steps,
                    "step_length": strategy.step_length,
                },
            ),
            estimator=build_estimator(config, sampling, num_users),
            assumptions=(f"The number of users, {num_users}, was declared public.",),
        )
