"""Clips: functions that bound what one unit can add, and the bound that they guarantee.

A clip scales an update's tensors so that its L2 norm is at most `.bound`. `factors` are Python
floats and are applied in float64: the factor of a huge float32 update would be a denormal
float32, too coarse to keep the bound. Calling a clip applies them; whoever sums (execution)
multiplies by the factors as it adds, which saves a copy of every update.

| update      | flat, per-layer          | normalised               |
|-------------|--------------------------|--------------------------|
| zero        | zero                     | zero                     |
| under bound | unchanged                | divided by the clip norm |
| over bound  | scaled to the bound      | scaled to norm 1         |
| NaN or inf  | never gets here: execution drops it to zero and counts it      |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from fedsim.tensors import Tensors, l2_norm

# Relative rounding of a float64 norm over up to 2^30 entries is far below this margin, so a
# clipped update never exceeds its bound by rounding.
_MARGIN = 1.0 - 1e-9

Norm = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


def layer_of(parameter: str) -> str:
    """Return the layer that a parameter belongs to: its name without the last part."""
    return parameter.rpartition(".")[0] or parameter


def layers_of(parameters: Iterable[str]) -> list[str]:
    """Return the distinct layers, in order of first appearance."""
    return list(dict.fromkeys(layer_of(name) for name in parameters))


class _Clip(BaseModel):
    """What every clip shares: frozen, and applied through its factors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __call__(self, update: Tensors) -> dict[str, torch.Tensor]:
        """Return the clipped update, float64."""
        factors = self.factors(update)
        return {name: value.double() * factors[name] for name, value in update.items()}

    def factors(self, update: Tensors) -> dict[str, float]:
        """Return what each tensor of the update is multiplied by."""
        raise NotImplementedError


def _projection(update: Tensors, norm_bound: float) -> float:
    """Return the factor of π(Δ, S), McMahan et al. 2018, eq. 1: min(1, S/‖Δ‖)."""
    norm = l2_norm(update)
    allowed = norm_bound * _MARGIN
    return 1.0 if norm <= allowed else allowed / norm


class FlatClip(_Clip):
    """One bound on the norm of the whole update (McMahan et al. 2018, FlatClip)."""

    kind: Literal["flat"] = "flat"
    l2_clip_norm: Norm

    @property
    def bound(self) -> float:
        """The largest L2 norm that comes out."""
        return self.l2_clip_norm

    def factors(self, update: Tensors) -> dict[str, float]:
        """Return one factor for all tensors."""
        return dict.fromkeys(update, _projection(update, self.l2_clip_norm))


class PerLayerClip(_Clip):
    """A bound S_j for each layer; together S = sqrt(Σ S_j²) (McMahan et al. 2018, PerLayerClip)."""

    kind: Literal["per-layer"] = "per-layer"
    l2_clip_norms: Mapping[str, Norm]

    @classmethod
    def evenly(cls, l2_clip_norm: float, layers: Iterable[str]) -> PerLayerClip:
        """Split one bound evenly: S_j = S/√m over the m layers."""
        names = list(layers)
        return cls(l2_clip_norms={name: l2_clip_norm / math.sqrt(len(names)) for name in names})

    @property
    def bound(self) -> float:
        """The largest L2 norm that comes out."""
        return math.hypot(*self.l2_clip_norms.values())

    def factors(self, update: Tensors) -> dict[str, float]:
        """Return a factor for each layer; a layer without a bound is a `ValueError`."""
        layers: dict[str, dict[str, torch.Tensor]] = {}
        for name, value in update.items():
            layers.setdefault(layer_of(name), {})[name] = value
        if missing := sorted(layers.keys() - self.l2_clip_norms.keys()):
            raise ValueError(f"l2_clip_norms: no bound for the layers {missing}")
        factors: dict[str, float] = {}
        for layer, part in layers.items():
            factors |= dict.fromkeys(part, _projection(part, self.l2_clip_norms[layer]))
        return factors


class NormalisedClip(_Clip):
    """Clip, then divide by the clip's bound, so that the learning rate does not depend on it.

    De et al. 2022, used by Charles et al. 2024 (App. F). What comes out has norm at most 1.
    """

    kind: Literal["normalised"] = "normalised"
    clip: Annotated[FlatClip | PerLayerClip, Field(discriminator="kind")]

    @property
    def bound(self) -> float:
        """The largest L2 norm that comes out."""
        return 1.0

    def factors(self, update: Tensors) -> dict[str, float]:
        """Return the inner factors over the inner bound."""
        return {
            name: factor / self.clip.bound for name, factor in self.clip.factors(update).items()
        }


class NoClip(_Clip):
    """Leave updates as they are. The bound is infinite, so no noise level can be derived."""

    kind: Literal["none"] = "none"

    @property
    def bound(self) -> float:
        """Infinity: nothing is bounded."""
        return math.inf

    def factors(self, update: Tensors) -> dict[str, float]:
        """Return ones."""
        return dict.fromkeys(update, 1.0)


Clip = Annotated[FlatClip | PerLayerClip | NormalisedClip | NoClip, Field(discriminator="kind")]
