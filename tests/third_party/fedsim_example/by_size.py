"""A strategy: user-level sampling in which large layers may move further than small ones.

The bound S is divided among the layers in proportion to the root of their size, S_j = S √(d_j/d),
so that an entry may be as large in one layer as in another. Noise and cost are those of S: the
plan derives them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import torch

from fedsim import (
    Config,
    ConfigError,
    FixedDenominator,
    Materials,
    PerLayerClip,
    PoissonSampling,
    RoundPlan,
    TaskSpec,
    layer_of,
    private_plan,
)

from .settings import refuse_unused

_USED = {"name", "rounds", "cohort_size", "group_size", "selection", "clip"}


def build(config: Config, materials: Materials) -> RoundPlan:
    """Return the plan: a coin for each user, one gradient a user, clipped layer by layer.

    Raises:
        ConfigError: a key is missing, or one was given that this strategy does not use.
    """
    strategy = config.strategy
    refuse_unused(config, _USED)
    num_users, expected = config.privacy.declared_num_users, strategy.cohort_size
    if num_users is None:
        raise ConfigError("privacy.declared_num_users: missing; give a public number of users")
    if expected is None or expected > num_users:
        raise ConfigError(f"strategy.cohort_size = {expected}: give a number up to {num_users}")
    coins = PoissonSampling(expected / num_users)
    return private_plan(
        config,
        materials,
        unit="user",
        pool=np.arange(materials.split.num_users, dtype=np.int64),
        population=num_users,
        sampling=coins,
        task=TaskSpec(
            name="fedsgd",
            options={"group_size": strategy.group_size, "selection": strategy.selection},
        ),
        estimator=FixedDenominator(coins.probability, num_users),
        clip=by_size(_clip_norm(config), materials.model.initial_parameters()),
        assumptions=(f"The number of users, {num_users}, was declared public.",),
    )


def by_size(l2_clip_norm: float, parameters: Mapping[str, torch.Tensor]) -> PerLayerClip:
    """Return bounds S √(d_j/d) over the layers of `parameters`; together they are S."""
    entries: Counter[str] = Counter()
    for name, value in parameters.items():
        entries[layer_of(name)] += value.numel()
    norms = {
        layer: l2_clip_norm * math.sqrt(count / entries.total()) for layer, count in entries.items()
    }
    return PerLayerClip(l2_clip_norms=norms)


def _clip_norm(config: Config) -> float:
    clip = config.strategy.clip
    if clip.l2_clip_norm is None:
        raise ConfigError("strategy.clip.l2_clip_norm: missing; give the norm of a whole update")
    if clip != type(clip)(l2_clip_norm=clip.l2_clip_norm):
        raise ConfigError('strategy.clip: "uls-by-size" takes l2_clip_norm and nothing else')
    return clip.l2_clip_norm
