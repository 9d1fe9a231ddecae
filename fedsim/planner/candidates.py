"""The two candidates of a plan: the config as ULS and as ELS, at one budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsim.config import Config, FedSGD
from fedsim.errors import ConfigError
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.planner.budget import at_budget, largest_budget
from fedsim.planner.noise import Noise
from fedsim.planner.variants import changed, tried
from fedsim.registry import distribution, is_own, names


@dataclass(frozen=True, eq=False)
class Candidate:
    """A config that is ready to run, its plan and its noise."""

    config: Config
    plan: RoundPlan
    noise: Noise


def check_plannable(config: Config) -> None:
    """Raise `ConfigError` if ULS and ELS cannot be compared at the config's ε and δ."""
    privacy, local = config.privacy, config.strategy.local
    name = config.strategy.name
    if name in names("strategies") and not is_own(distribution("strategies", name)):
        raise ConfigError(
            f"strategy.name = {name!r}: the plan compares uls and els; plan with one of them"
        )
    if privacy.epsilon is None or privacy.delta is None:
        raise ConfigError(
            f"privacy.epsilon = {privacy.epsilon}, privacy.delta = {privacy.delta}: the plan "
            "compares strategies at one ε and δ; give both, and no noise_multiplier"
        )
    if config.strategy.clip.schedule is not None or config.strategy.clip.adaptive is not None:
        raise ConfigError(
            "strategy.clip: the plan compares constant clips; remove schedule and adaptive"
        )
    if (kind := config.strategy.sampling.kind) in ("balanced", "cyclic"):
        raise ConfigError(
            f'strategy.sampling.kind = "{kind}": the plan compares Poisson cohorts, and prints the '
            'settings of other samplers; take "poisson" here, without privacy.mechanism'
        )
    if not isinstance(local, FedSGD):
        raise ConfigError(
            f'strategy.local.task = "{local.task}": the plan compares gradients; take "fedsgd"'
        )


def as_els(config: Config, group_size: int, l2_clip_norm: float = 1.0) -> Config:
    """Return the config with strategy "els", without a batch size.

    Removes keys that ELS does not take, and a declared number of examples unless it was declared
    for this group size.
    """
    same = config.strategy.name == "els" and config.strategy.group_size == group_size
    declared = config.privacy.declared_num_examples if same else None
    return changed(
        config,
        strategy={
            "name": "els",
            "group_size": group_size,
            "cohort_size": None,
            "user_weight_cap": None,
            "estimator": None,
            "clip": as_clip(config, l2_clip_norm),
        },
        privacy={"declared_num_examples": declared},
    )


def as_uls(config: Config, group_size: int, l2_clip_norm: float = 1.0) -> Config:
    """Return the config with strategy "uls", without a cohort size."""
    return changed(
        config,
        strategy={
            "name": "uls",
            "group_size": group_size,
            "batch_size": None,
            "bounding": None,
            "clip": as_clip(config, l2_clip_norm),
        },
    )


def candidate(config: Config, materials: Materials, budget: float) -> Candidate:
    """Return the config at the budget, with the noise that the strategy calibrates.

    Raises:
        ConfigError: the strategy or its accountant refuses the config.
    """
    met = at_budget(config, materials, budget)
    plan = tried(met, materials)
    strategy = met.strategy
    size, norm = strategy.expected_users or strategy.expected_examples, strategy.clip.l2_clip_norm
    if size is None or norm is None:
        raise AssertionError("a candidate has a size and a clip norm")
    # With a normalised clip the plan's noise is relative to the clip norm.
    stddev = plan.noise_stddev * norm / plan.clip.bound
    noise = Noise(strategy.name, strategy.group_size, size, plan.noise_multiplier, norm, stddev)
    return Candidate(met, plan, noise)


def median_user_size(materials: Materials) -> int:
    """Return G_ELS by a heuristic: the median number of examples (Charles et al. 2024, App. H)."""
    return int(np.quantile(materials.split.user_sizes, 0.5, method="inverted_cdf"))


def enough(
    variant: Callable[[int], Config], materials: Materials, budget: float, group_size: int
) -> int:
    """Return the group size, doubled until users have enough examples for the budget.

    Args:
        variant: function that returns the config with a group size.
        materials: materials of the config.
        budget: B, gradients per round.
        group_size: first group size to try.

    Raises:
        ConfigError: there are too few examples for the budget.
    """
    largest = int(materials.split.user_sizes.max())
    while True:
        possible = largest_budget(variant(group_size), materials)
        if possible >= budget:
            return group_size
        if group_size >= largest:
            raise ConfigError(
                f"--budget = {budget:g}: all examples of all users give only {possible:g} "
                "gradients; give at most that"
            )
        group_size *= 2


def as_clip(config: Config, l2_clip_norm: float) -> dict[str, object]:
    """Return the table `strategy.clip` with another norm."""
    clip = config.strategy.clip
    return {"kind": clip.kind, "l2_clip_norm": l2_clip_norm, "normalise": clip.normalise}
