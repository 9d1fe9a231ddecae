"""The plan of a Flower app's rounds: from plain numbers, each checked, over whatever nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.clipping import Clip, FlatClip, PerLayerClip, layers_of
from fedsim.errors import ConfigError, about
from fedsim.estimators import FixedDenominator
from fedsim.grids.records import from_record
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.sampling import PoissonSampling
from fedsim.server_optimizer import ServerOptimizer
from fedsim.tensors import all_finite


class NodePlan(RoundPlan):
    """The plan of one round of nodes; its coins are flipped once, fresh entropy or not.

    Flower sends the messages before it has the replies, and both must mean the same cohort.
    """

    def cohort(self, round: int) -> npt.NDArray[np.int64]:
        """Return the positions of the drawn nodes: the same at every call."""
        if round not in self._cohorts:
            self._cohorts[round] = super().cohort(round)
        return self._cohorts[round]

    @cached_property
    def _cohorts(self) -> dict[int, npt.NDArray[np.int64]]:
        return {}


def node_plan(
    *,
    num_users: int,
    cohort_size: float,
    l2_clip_norm: float | Mapping[str, float],
    delta: float,
    noise_multiplier: float | None,
    epsilon: float | None,
    num_rounds: int | None,
    noise: Literal["secure", "seeded"],
    seed: int | None,
    server_learning_rate: float,
) -> NodePlan:
    """Return the plan of every round, but for its pool: the nodes that are then connected.

    For the arguments see `DPFedAvg`.
    """
    require(0.0 < delta < 1.0, "delta", delta, "a number in (0, 1), such as 1e-5")
    require(_whole(num_users), "num_users", num_users, "an integer >= 1")
    fits = 0.0 < cohort_size <= num_users
    require(fits, "cohort_size", cohort_size, f"a number in (0, num_users = {num_users}]")
    coins, rate = PoissonSampling(cohort_size / num_users), server_learning_rate
    multiplier = _noise_multiplier(coins, noise_multiplier, epsilon, delta, num_rounds)
    require(0.0 < rate < math.inf, "server_learning_rate", rate, "a finite number > 0")
    require(noise in ("secure", "seeded"), "noise", noise, '"secure" or "seeded"')
    fits = type(seed) is int if noise == "seeded" else seed is None
    require(fits, "seed", seed, 'an integer with noise = "seeded", else leave it out')
    clip = _clip(l2_clip_norm)
    with about(""):
        return NodePlan(
            strategy="flower",
            unit="user",
            pool=np.arange(1),
            sampling=coins,
            task=TaskSpec(name="flower-client-app"),
            clip=clip,
            estimator=FixedDenominator(coins.probability, float(num_users)),
            noise_multiplier=multiplier,
            units_per_user=1,
            optimizer=ServerOptimizer("sgd", rate),
            seed=seed or 0,
            entropy=noise,
        )


def require(holds: bool, field: str, value: object, wanted: str) -> None:
    """Raise a `ConfigError` that names field, value and what would do, unless it holds."""
    if not holds:
        raise ConfigError(f"{field} = {value!r}: give {wanted}")


def _whole(value: object) -> bool:
    return type(value) is int and value >= 1


def _clip(norm: float | Mapping[str, float]) -> FlatClip | PerLayerClip:
    norms = norm if isinstance(norm, Mapping) else {"": norm}
    fits = bool(norms) and all(0.0 < value < math.inf for value in norms.values())
    require(fits, "l2_clip_norm", norm, "a finite number > 0, or one for each layer")
    if isinstance(norm, Mapping):
        return PerLayerClip(l2_clip_norms=norm)
    return FlatClip(l2_clip_norm=norm)


def _noise_multiplier(
    coins: PoissonSampling,
    given: float | None,
    epsilon: float | None,
    delta: float,
    num_rounds: int | None,
) -> float:
    """Return the noise multiplier that was given, or the least that keeps epsilon; one is None."""
    if (given is None) == (epsilon is None):
        raise ConfigError(
            f"noise_multiplier = {given!r}, epsilon = {epsilon!r}: give exactly one of them"
        )
    if epsilon is not None:
        fits = num_rounds is not None and _whole(num_rounds)
        require(fits, "num_rounds", num_rounds, "an integer >= 1, the rounds epsilon pays for")
        return calibrate_noise_multiplier(
            sampling=coins, rounds=num_rounds or 0, epsilon=epsilon, delta=delta
        )
    require(num_rounds is None, "num_rounds", num_rounds, "it with epsilon only; leave it out")
    fits = given is not None and 0.0 <= given < math.inf
    require(fits, "noise_multiplier", given, "a finite number >= 0")
    return given or 0.0


def parameters_of(arrays: ArrayRecord, clip: Clip) -> dict[str, torch.Tensor]:
    """Return the arrays as tensors, or raise `ConfigError` for what cannot be clipped and noised.

    A counter of batches, say, is neither: an unprotected average of integers would tell of them.
    """
    tensors = from_record(arrays)
    for name, value in tensors.items():
        kind = str(value.dtype).removeprefix("torch.")
        wanted = "floating point; send no other"
        require(value.is_floating_point(), f"arrays[{name!r}].dtype", kind, wanted)
    require(bool(tensors) and all_finite(tensors), "arrays", list(tensors), "finite numbers")
    if isinstance(clip, PerLayerClip):
        layers = layers_of(tensors)
        fits = set(layers) == set(clip.l2_clip_norms)
        require(fits, "l2_clip_norm", dict(clip.l2_clip_norms), f"a norm for each of {layers}")
    return tensors
