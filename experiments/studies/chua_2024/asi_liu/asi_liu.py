"""The strategy of Asi & Liu (2024; Chua et al. 2024, Algorithm 3)."""

from __future__ import annotations

from typing import Self, cast

import numpy as np
from pydantic import model_validator

from fedsim.config import Config, StrategyConfig
from fedsim.errors import ConfigError
from fedsim.experiments.studies.chua_2024.asi_liu.accountant import failure_probability
from fedsim.experiments.studies.chua_2024.asi_liu.filter import Filtered, FilteredMean
from fedsim.experiments.studies.chua_2024.asi_liu.sampling import ConcentratedSampling, halting_test
from fedsim.materials import Materials
from fedsim.parts import not_hidden, user_task
from fedsim.plan import RoundPlan
from fedsim.strategies.uls import UserSelection
from fedsim.strategy import private_plan
from fedsim.utils.section import Positive

MOST_BYTES = 4 * 2**30  # limit on all users' gradients, which a round holds at once

_ASSUMPTIONS = (
    "Half of the ε pays for AboveThreshold over the whole run. The other half pays for the "
    "Gaussian releases, with δ minus the probability that the test is wrong.",
    "The noise is scaled to 24 τ/N, the proved sensitivity for users weighted by the filter. "
    "The scale printed in Algorithm 3 (Chua et al. 2024) is for coins and is not used.",
    "All rounds are charged before the first, even if the run halts early.",
)


class AsiLiuConfig(StrategyConfig):
    """Keys of "asi-liu", which uses all users in every round."""

    default_relation = "replace-one"
    selection: UserSelection = "random"
    concentration_radius: Positive
    """Maximum distance between two updates that count as close."""

    @model_validator(mode="after")
    def _covered(self) -> Self:
        for key, default in (("sampling", "poisson"), ("estimator", "fixed")):
            if (kind := getattr(self, key).kind) != default:
                raise ValueError(f"{key}.kind = {kind!r}: 'asi-liu' has its own {key}; remove it")
        if self.clip.schedule is not None or self.clip.adaptive is not None:
            raise ValueError(
                "clip: strategy 'asi-liu' scales noise to the concentration radius, not to the "
                "clip; remove schedule and adaptive"
            )
        return self


class AsiLiu:
    """Test all users' updates for concentration within τ; filter and average them; add noise.

    This is Chua et al.'s Algorithm 3 with three changes that the proof needs. Users are weighted by
    the filter's probability instead of drawn with it. The noise is scaled to the proved sensitivity
    (`FilteredMean`). Updates are clipped, which never increases the distance of two updates.
    """

    options = AsiLiuConfig

    @staticmethod
    def build(config: Config, materials: Materials) -> RoundPlan:
        """Return the plan.

        Raises:
            ConfigError: ε is missing, the proof does not cover the config, there are too few users
                for ε, or the gradients do not fit into memory.
        """
        strategy, epsilon = cast(AsiLiuConfig, config.strategy), config.privacy.epsilon
        if epsilon is None:
            raise ConfigError(
                "privacy.epsilon: missing; strategy 'asi-liu' divides it between test and releases"
            )
        num_users, radius = materials.split.num_users, strategy.concentration_radius
        _check_memory(num_users, materials)
        sampling = ConcentratedSampling(num_users, epsilon / 2.0, strategy.rounds)
        _check_population(config, sampling)
        test = halting_test(num_users, sampling.test_epsilon)
        return private_plan(
            config,
            materials,
            unit="user",
            pool=np.arange(num_users, dtype=np.int64),
            population=num_users,
            sampling=sampling,
            task=user_task(strategy),
            estimator=FilteredMean(radius, num_users),
            assumptions=(not_hidden(num_users, "users"), *_ASSUMPTIONS),
            wrapper=lambda executor, draws: Filtered(executor, test, radius, draws),
            priced_questions=("whether a round's users are concentrated",),
        )


def _check_population(config: Config, sampling: ConcentratedSampling) -> None:
    declared, delta = config.privacy.declared_num_users, config.privacy.delta
    if declared is not None and declared != sampling.population:
        raise ConfigError(
            f"privacy.declared_num_users = {declared}: there are {sampling.population} users, and "
            "the proof of strategy 'asi-liu' needs the true number; remove it"
        )
    wrong = failure_probability(sampling)
    if delta is not None and wrong >= delta:
        raise ConfigError(
            f"privacy.epsilon = {config.privacy.epsilon}, privacy.delta = {delta:g}: with "
            f"{sampling.population} users the test of strategy 'asi-liu' may be wrong with "
            f"probability {wrong:.2g}; it needs a larger epsilon or delta, or more users"
        )


def _check_memory(num_users: int, materials: Materials) -> None:
    parameters = sum(value.numel() for value in materials.model.initial_parameters().values())
    if (needed := 4 * num_users * parameters) > MOST_BYTES:
        raise ConfigError(
            f"strategy.name = 'asi-liu': holds the gradients of all {num_users} users at once, "
            f"{needed / 2**30:.1f} GiB for {parameters} parameters, more than "
            f"{MOST_BYTES / 2**30:g}; take fewer users, model.trainable or model.lora_rank"
        )
