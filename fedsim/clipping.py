"""Clips: functions that bound the update of one unit, and the bound that they guarantee.

A clip scales an update's tensors so that the L2 norm of the update is at most `.bound`. `factors`
are Python floats and are applied in float64: the factor of a huge float32 update would be a
denormal float32, too coarse to keep the bound. Calling a clip applies them. The accumulator
(execution) multiplies by the factors while it adds, which saves a copy of every update. Engines
that know only the norms of many units call `batch_factors`; `factors` is its case of one unit.

| update      | flat, per-layer          | normalised               |
|-------------|--------------------------|--------------------------|
| zero        | zero                     | zero                     |
| under bound | unchanged                | divided by the clip norm |
| over bound  | scaled to the bound      | scaled to norm 1         |
| NaN or inf  | never gets here: execution drops it to zero and counts it      |

To add a clip, register a subclass of `Clip` under the entry-point group `fedsim.clips`
(`docs/how-to/own-parts.md`).
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, model_validator

from fedsim.config.schema import ClipConfig
from fedsim.errors import ConfigError
from fedsim.registry import resolve
from fedsim.tensors import Tensors, l2_norms
from fedsim.utils.section import Positive

# The rounding error of a float64 norm over up to 2^30 entries is far below this relative margin, so
# rounding never pushes a clipped update above its bound.
_MARGIN = 1.0 - 1e-9

Norm = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


def layer_of(parameter: str) -> str:
    """Return the layer of a parameter: its name without the last part.

    Examples:
        >>> layer_of("transformer.h.0.attn.c_attn.weight")
        'transformer.h.0.attn.c_attn'
        >>> layer_of("scale")
        'scale'
    """
    return parameter.rpartition(".")[0] or parameter


def layers_of(parameters: Iterable[str]) -> list[str]:
    """Return the distinct layers, in order of first appearance."""
    return list(dict.fromkeys(layer_of(name) for name in parameters))


class FlatClipConfig(ClipConfig):
    """One bound on the whole update."""

    @model_validator(mode="after")
    def _has_bound(self) -> Self:
        if self.l2_clip_norm is None:
            raise ValueError("l2_clip_norm: missing; give the largest norm of an update")
        return self


class PerLayerClipConfig(ClipConfig):
    """A bound on each layer of an update."""

    l2_clip_norms: dict[str, Positive] | None = None
    """Bounds by layer name, instead of `l2_clip_norm`."""

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.l2_clip_norm is None) == (self.l2_clip_norms is None):
            raise ValueError("give either l2_clip_norm or l2_clip_norms, a bound for each layer")
        return self


class Clip(BaseModel):
    """A bound on the update of one unit: multiplies each tensor of the update by a factor.

    A subclass is a frozen pydantic model; workers receive it as JSON. Its entry point in
    `fedsim.clips` is named `kind`.

    The ε relies on these formal guarantees:

    - For every finite update, the clipped update has an L2 norm over all tensors of at most
      `bound`. The norms given to `batch_factors` may be too small by `norm_error`.
    - The factors of an update depend only on its own norms and on the clip's fields.
    - `bound` is a public constant. An infinite bound allows no noise level and no ε.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    options: ClassVar[type[ClipConfig]] = ClipConfig
    kind: str

    @classmethod
    def build(cls, options: Any, parameters: Tensors) -> Clip:  # noqa: ANN401
        """Return the clip of a config.

        Args:
            options: the table `strategy.clip`, an instance of `cls.options`.
            parameters: the trainable parameters.

        Raises:
            ConfigError: `options` do not fit `parameters`.
        """
        raise NotImplementedError

    def __call__(self, update: Tensors) -> dict[str, torch.Tensor]:
        """Return the clipped update, float64."""
        factors = self.factors(update)
        return {name: value.double() * factors[name] for name, value in update.items()}

    def factors(self, update: Tensors, *, norm_error: float = 0.0) -> dict[str, float]:
        """Return the factor of each tensor of the update; see `batch_factors`."""
        norms = l2_norms(update)
        squares = [norm * norm for norm in norms]  # `**` would raise where this is infinite
        row = torch.tensor([squares], dtype=torch.float64)
        factors = self.batch_factors(list(update), row, norm_error=norm_error)[0].tolist()
        return dict(zip(update, factors, strict=True))

    @property
    @abstractmethod
    def bound(self) -> float:
        """The largest L2 norm of a clipped update."""

    @property
    def norm(self) -> float:
        """The L2 norm up to which an update is within the clip; adaptive clipping moves it."""
        return self.bound

    @property
    def unclipped_factor(self) -> float:
        """The factor of all tensors of an update within the clip; it marks unclipped updates."""
        return 1.0

    @abstractmethod
    def scaled(self, scale: float) -> Clip:
        """Return the clip at `scale` times the norm, for schedules and adaptive clipping."""

    @abstractmethod
    def batch_factors(
        self, names: Sequence[str], squares: torch.Tensor, *, norm_error: float = 0.0
    ) -> torch.Tensor:
        """Return the factor of each tensor of many updates.

        Args:
            names: names of the tensors.
            squares: (units, tensors) float64, squared L2 norms of the tensors, finite.
            norm_error: maximum relative error by which a given norm is below the true one.

        Returns:
            (units, tensors) float64.
        """


def _projections(squares: torch.Tensor, norm_bound: float, norm_error: float) -> torch.Tensor:
    """Return the factors of π(Δ, S), McMahan et al. 2018, eq. 1: min(1, S/‖Δ‖), (units, 1).

    Args:
        squares: (units, tensors) squared norms of the tensors under one bound.
        norm_bound: S.
        norm_error: see `batch_factors`.
    """
    norms = squares.sum(dim=1, keepdim=True).sqrt()
    allowed = norm_bound * _MARGIN * (1.0 - norm_error)
    return torch.where(norms <= allowed, 1.0, allowed / norms)


def clip_of(content: Any) -> Any:  # noqa: ANN401
    """Return the clip for a JSON object; return any other value unchanged.

    Raises:
        ConfigError: the kind is not registered.
    """
    if not isinstance(content, Mapping):
        return content
    built_in: dict[str, type[Clip]] = {"normalised": NormalisedClip, "none": NoClip}
    kind = str(content.get("kind"))
    clip: type[Clip] = built_in.get(kind) or resolve("clips", kind, "clip")
    return clip.model_validate(content)


def clip_from_json(text: str) -> Clip:
    """Return the clip for its JSON text in a message to a worker."""
    clip: Clip = clip_of(json.loads(text))
    return clip


AnyClip = Annotated[SerializeAsAny[Clip], BeforeValidator(clip_of)]


class FlatClip(Clip):
    """One bound on the norm of the whole update (McMahan et al. 2018, FlatClip).

    Examples:
        >>> clip = FlatClip(l2_clip_norm=1.0)
        >>> update = {"w": torch.tensor([3.0, 4.0])}
        >>> round(math.hypot(*l2_norms(clip(update))), 6)
        1.0
        >>> clip.factors({"w": torch.tensor([0.3, 0.4])})  # within the bound: unchanged
        {'w': 1.0}
        >>> clip.scaled(0.5).bound
        0.5
    """

    options: ClassVar[type[ClipConfig]] = FlatClipConfig
    kind: Literal["flat"] = "flat"
    l2_clip_norm: Norm

    @classmethod
    def build(cls, options: ClipConfig, parameters: Tensors) -> Clip:
        """Return the clip with the norm in the options."""
        return cls.model_validate({"l2_clip_norm": options.l2_clip_norm})

    @property
    def bound(self) -> float:
        """The largest L2 norm of a clipped update."""
        return self.l2_clip_norm

    def batch_factors(
        self, names: Sequence[str], squares: torch.Tensor, *, norm_error: float = 0.0
    ) -> torch.Tensor:
        """Return one factor for all tensors of an update."""
        return _projections(squares, self.l2_clip_norm, norm_error).expand(squares.shape)

    def scaled(self, scale: float) -> FlatClip:
        """Return the clip at `scale` times the norm."""
        return FlatClip(l2_clip_norm=scale * self.l2_clip_norm)


class PerLayerClip(Clip):
    """A bound S_j for each layer; together S = sqrt(Σ S_j²) (McMahan et al. 2018, PerLayerClip).

    Examples:
        >>> clip = PerLayerClip(l2_clip_norms={"a": 3.0, "b": 4.0})
        >>> clip.bound
        5.0
        >>> update = {"a.weight": torch.tensor([6.0]), "b.weight": torch.tensor([1.0])}
        >>> {name: round(factor, 6) for name, factor in clip.factors(update).items()}
        {'a.weight': 0.5, 'b.weight': 1.0}
        >>> PerLayerClip.evenly(1.0, ["a", "b", "c", "d"]).l2_clip_norms["a"]
        0.5
    """

    options: ClassVar[type[ClipConfig]] = PerLayerClipConfig
    kind: Literal["per-layer"] = "per-layer"
    l2_clip_norms: Mapping[str, Norm]

    @classmethod
    def build(cls, options: PerLayerClipConfig, parameters: Tensors) -> Clip:
        """Return the clip with the norms in the options, or with one norm split evenly."""
        layers = layers_of(parameters)
        if options.l2_clip_norm is not None:
            return cls.evenly(options.l2_clip_norm, layers)
        norms = options.l2_clip_norms or {}
        if wrong := set(layers) ^ norms.keys():
            raise ConfigError(
                f"strategy.clip.l2_clip_norms: {sorted(wrong)} missing or unknown; "
                f"the trainable layers are {layers}"
            )
        return cls(l2_clip_norms=norms)

    @classmethod
    def evenly(cls, l2_clip_norm: float, layers: Iterable[str]) -> PerLayerClip:
        """Split one bound evenly: S_j = S/√m over the m layers."""
        names = list(layers)
        return cls(l2_clip_norms={name: l2_clip_norm / math.sqrt(len(names)) for name in names})

    @property
    def bound(self) -> float:
        """The largest L2 norm of a clipped update."""
        return math.hypot(*self.l2_clip_norms.values())

    def batch_factors(
        self, names: Sequence[str], squares: torch.Tensor, *, norm_error: float = 0.0
    ) -> torch.Tensor:
        """Return a factor for each layer; a layer without a bound is a `ValueError`."""
        layers: dict[str, list[int]] = {}
        for column, name in enumerate(names):
            layers.setdefault(layer_of(name), []).append(column)
        if missing := sorted(layers.keys() - self.l2_clip_norms.keys()):
            raise ValueError(f"l2_clip_norms: no bound for the layers {missing}")
        factors = torch.empty_like(squares)
        for layer, columns in layers.items():
            bound = self.l2_clip_norms[layer]
            factors[:, columns] = _projections(squares[:, columns], bound, norm_error)
        return factors

    def scaled(self, scale: float) -> PerLayerClip:
        """Return the clip with every layer's bound times `scale`."""
        norms = {name: scale * norm for name, norm in self.l2_clip_norms.items()}
        return PerLayerClip(l2_clip_norms=norms)


class NormalisedClip(Clip):
    """Clip, then divide by the clip's bound, so that the learning rate does not depend on it.

    De et al. 2022, used by Charles et al. 2024 (App. F). The result has norm at most 1 for every
    inner clip. So scaling the inner clip changes which units are clipped, but not the noise.

    Examples:
        >>> clip = NormalisedClip(clip=FlatClip(l2_clip_norm=0.1))
        >>> clip.bound
        1.0
        >>> round(float(clip({"w": torch.tensor([0.05])})["w"]), 6)  # half of the inner bound
        0.5
    """

    kind: Literal["normalised"] = "normalised"
    clip: AnyClip

    @property
    def bound(self) -> float:
        """The largest L2 norm of a clipped update."""
        return 1.0

    def batch_factors(
        self, names: Sequence[str], squares: torch.Tensor, *, norm_error: float = 0.0
    ) -> torch.Tensor:
        """Return the inner factors over the inner bound."""
        inner = self.clip.batch_factors(names, squares, norm_error=norm_error)
        return inner / self.clip.bound

    @property
    def unclipped_factor(self) -> float:
        """One over the inner bound."""
        return 1.0 / self.clip.bound

    @property
    def norm(self) -> float:
        """The inner clip's norm."""
        return self.clip.norm

    def scaled(self, scale: float) -> NormalisedClip:
        """Return the clip with the inner clip scaled."""
        return NormalisedClip(clip=self.clip.scaled(scale))


class NoClip(Clip):
    """Leave updates unchanged. The bound is infinite, so no noise level can be derived."""

    kind: Literal["none"] = "none"

    @property
    def bound(self) -> float:
        """Infinity: updates have no bound."""
        return math.inf

    def batch_factors(
        self, names: Sequence[str], squares: torch.Tensor, *, norm_error: float = 0.0
    ) -> torch.Tensor:
        """Return ones."""
        return torch.ones_like(squares)

    def scaled(self, scale: float) -> NoClip:
        """Return itself."""
        return self
