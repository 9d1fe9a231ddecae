"""A task, and the strategy that asks for it: local training that is held near the server.

FedProx (Li et al. 2020): a user takes steps of gradient descent on its own loss plus
pull/2 · ‖θ − θ_server‖², and sends the difference. Users who differ much drift apart less. Sampler,
clip, denominator, noise and cost are those of user-level sampling, whatever the steps are.
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


class Proximal(UserTask):
    """Steps on the gradient of all of a unit's examples; units come from `UserTask`.

    A model with dropout drops the same numbers in each of them.

    Attributes:
        averages_gradients: false, so that no engine computes a gradient in place of `update`.
    """

    averages_gradients: ClassVar[bool] = False

    def __init__(
        self,
        materials: Materials,
        *,
        group_size: int,
        steps: int,
        learning_rate: float,
        pull: float,
    ) -> None:
        super().__init__(materials, group_size=group_size)
        self._steps, self._learning_rate, self._pull = steps, learning_rate, pull

    def update(self, parameters: Mapping[str, torch.Tensor], unit: Unit, round: int) -> Update:
        """Return θ_server − θ_local; the server's optimizer takes it as a gradient."""
        local = dict(parameters)
        loss, num_gradients = 0.0, 0
        for step in range(self._steps):
            found = mean_gradient(self.model, local, unit)  # zero for a unit without examples
            if step == 0:
                loss = found.loss
            num_gradients += found.num_gradients
            for name, start in parameters.items():
                slope = found.values[name] + self._pull * (local[name] - start)
                local[name] = local[name] - self._learning_rate * slope
        moved = {name: value - local[name] for name, value in parameters.items()}
        return Update(moved, loss=loss, num_gradients=num_gradients)


class ProximalConfig(StrategyConfig):
    """Keys of `uls-proximal`."""

    cohort_size: Annotated[float, Field(gt=0.0)]
    """Expected number of users a round."""
    pull: Annotated[float, Field(ge=0.0)] = 0.1
    """How strongly local training is held near the server."""


class UserLevelProximal:
    """A coin for each user, one clipped difference a user."""

    options = ProximalConfig

    @staticmethod
    def build(config: Config, materials: Materials) -> RoundPlan:
        """Return the plan.

        `strategy.local` says how many steps (its epochs) and how long they are; each is of all
        examples, whatever its batch size.

        Raises:
            ConfigError: a key is missing, or cannot be.
        """
        strategy, num_users = config.strategy, config.privacy.declared_num_users
        assert isinstance(strategy, ProximalConfig)
        if strategy.local.task != "fedavg":
            raise ConfigError('strategy.local.task: give "fedavg", its epochs and learning_rate')
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
                name="example-proximal",
                options={
                    "group_size": strategy.group_size,
                    "steps": strategy.local.epochs,
                    "learning_rate": strategy.local.learning_rate,
                    "pull": strategy.pull,
                },
            ),
            estimator=build_estimator(config, sampling, num_users),
            assumptions=(f"The number of users, {num_users}, was declared public.",),
        )
