"""Build and check the parts of a Flower app's plan from plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ArrayRecord

from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.clipping import Clip, FlatClip, PerLayerClip, layers_of
from fedsim.errors import ConfigError
from fedsim.grids.records import from_record
from fedsim.plan import RoundPlan
from fedsim.sampling import PoissonSampling
from fedsim.tensors import all_finite


class NodePlan(RoundPlan):
    """The plan of one round over nodes; it draws each cohort once, also with secret coins.

    Flower first sends messages and later aggregates replies; both must use the same cohort.
    """

    def cohort(self, round: int) -> npt.NDArray[np.int64]:
        """Return the positions of the drawn nodes, the same at every call."""
        if round not in self._cohorts:
            self._cohorts[round] = super().cohort(round)
        return self._cohorts[round]

    @cached_property
    def _cohorts(self) -> dict[int, npt.NDArray[np.int64]]:
        return {}


def require(holds: bool, field: str, value: object, wanted: str) -> None:
    """Raise a `ConfigError` with field, value and the accepted values, unless `holds`."""
    if not holds:
        raise ConfigError(f"{field} = {value!r}: give {wanted}")


def is_count(value: object) -> bool:
    """Return whether a value is an integer >= 1."""
    return type(value) is int and value >= 1


def clip_of(norm: float | Mapping[str, float]) -> FlatClip | PerLayerClip:
    """Return a flat clip for one norm, or a per-layer clip for norms by layer."""
    norms = norm if isinstance(norm, Mapping) else {"": norm}
    fits = bool(norms) and all(0.0 < value < math.inf for value in norms.values())
    require(fits, "l2_clip_norm", norm, "a finite number > 0, or one for each layer")
    if isinstance(norm, Mapping):
        return PerLayerClip(l2_clip_norms=norm)
    return FlatClip(l2_clip_norm=norm)


def noise_of(
    coins: PoissonSampling,
    given: float | None,
    epsilon: float | None,
    delta: float,
    num_rounds: int | None,
) -> float:
    """Return the given noise multiplier, or the smallest one that meets `epsilon`."""
    if (given is None) == (epsilon is None):
        raise ConfigError(
            f"noise_multiplier = {given!r}, epsilon = {epsilon!r}: give exactly one of them"
        )
    if epsilon is not None:
        fits = num_rounds is not None and is_count(num_rounds)
        require(fits, "num_rounds", num_rounds, "an integer >= 1, the rounds epsilon pays for")
        return calibrate_noise_multiplier(
            sampling=coins, rounds=num_rounds or 0, epsilon=epsilon, delta=delta
        )
    require(num_rounds is None, "num_rounds", num_rounds, "it only with epsilon; leave it out")
    fits = given is not None and 0.0 <= given < math.inf
    require(fits, "noise_multiplier", given, "a finite number >= 0")
    return given or 0.0


def parameters_of(arrays: ArrayRecord, clip: Clip) -> dict[str, torch.Tensor]:
    """Return the arrays as tensors; raise `ConfigError` for integers, NaN and infinities.

    Integers, such as a counter of batches, cannot be clipped and noised; their average would not be
    protected.
    """
    tensors = from_record(arrays)
    for name, value in tensors.items():
        kind = str(value.dtype).removeprefix("torch.")
        wanted = "floating point; send only such arrays"
        require(value.is_floating_point(), f"arrays[{name!r}].dtype", kind, wanted)
    require(bool(tensors) and all_finite(tensors), "arrays", list(tensors), "finite numbers")
    if isinstance(clip, PerLayerClip):
        layers = layers_of(tensors)
        fits = set(layers) == set(clip.l2_clip_norms)
        require(fits, "l2_clip_norm", dict(clip.l2_clip_norms), f"a norm for each of {layers}")
    return tensors
