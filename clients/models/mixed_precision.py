"""Mixed precision: logits under bfloat16 autocast, parameters and gradients in float32.

Frozen weights that bfloat16 holds exactly, as those of a checkpoint that was published in it, are
kept in it: half of the memory, and no copies of them that a pass keeps for its gradient.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import nn

from fedsim.config import Precision
from fedsim.language_model import LanguageModel, made_up_text, module_of
from fedsim.tensors import Tensors

Model = TypeVar("Model", bound=LanguageModel)


class MixedPrecision:
    """`model` with its logits computed under `torch.autocast`; all else is the model's own.

    The backward pass then computes in the types of the forward pass. Gradients of parameters, and
    their norms and clipped sums, have the parameters' type: a clip must take the norm of exactly
    the numbers that are added up.

    Attributes:
        exact: the model without it.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.exact = model

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the model has)
        """Return the model's own attribute."""
        if name == "exact":  # not set yet, as in a copy being made
            raise AttributeError(name)
        return getattr(self.exact, name)

    def logits(
        self, parameters: Tensors, tokens: torch.Tensor, *positions: torch.Tensor
    ) -> torch.Tensor:
        """Return what the model returns, products of matrices rounded to bfloat16.

        Weights are cast in each call: a cache of casts would outlive one transform of
        `torch.func` and be found by the next.
        """
        device = self.exact.device.type
        with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
            return self.exact.logits(parameters, tokens, *positions)


def in_precision(model: LanguageModel, precision: Precision) -> LanguageModel:
    """Return the model, computing in `precision`; for bfloat16 see `narrow_frozen_`, too."""
    if precision == "float32":
        return model
    mixed = cast(LanguageModel, MixedPrecision(model))
    narrow_frozen_(mixed)
    return mixed


def in_float32(model: Model) -> Model:
    """Return the model without mixed precision."""
    return cast(Model, model.exact) if isinstance(model, MixedPrecision) else model


class NarrowLinear(nn.Linear):
    """A linear layer whose weight may be in bfloat16 where its inputs are wider."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (nn.Linear's own name)
        """Return what `nn.Linear` does of the weight in the type of the inputs."""
        mixed = torch.is_autocast_enabled(input.device.type)  # which takes both as they are
        weight = self.weight if mixed else self.weight.to(input.dtype)
        return F.linear(input, weight, self.bias)

    def _get_name(self) -> str:
        # As torch prints it: a run's draws go by the printed layers, and this is the same layer.
        return "Linear"


class NarrowEmbedding(nn.Embedding):
    """A table of words in bfloat16, which gives float32."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (nn.Embedding's own name)
        """Return what `nn.Embedding` does of a table in float32."""
        return super().forward(input).to(torch.float32)

    def _get_name(self) -> str:
        return "Embedding"


_NARROW: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: NarrowLinear,
    nn.Embedding: NarrowEmbedding,
}
_TOKENS = 8  # of a made-up text, at most


@torch.no_grad()
def narrow_frozen_(model: LanguageModel) -> None:
    """Keep frozen weights of linear layers and tables in bfloat16 where it holds them exactly.

    Logits are the same to the bit, in float32 too: that is tried on a made-up text, and where they
    are not (a network that reads a layer's weight itself) all stays as it is. A model that cannot
    be looked into, or whose parameters all move, has nothing to keep.

    Args:
        model: in mixed precision; its network is changed in place.
    """
    module, moving = module_of(model), getattr(model, "places", {})
    layers: dict[nn.Parameter, list[nn.Module]] = {}
    for place, value in module.named_parameters(remove_duplicate=False):
        above, _, name = place.rpartition(".")
        layer = module.get_submodule(above)
        of_the_layer = {f"{above}.{own}" for own, _ in layer.named_parameters(recurse=False)}
        known = type(layer) in _NARROW or isinstance(layer, NarrowLinear)
        fits = known and name == "weight" and not moving.keys() & of_the_layer
        layers.setdefault(value, []).append(layer if fits else module)  # which fits nowhere
    narrow = {
        value: parts
        for value, parts in layers.items()
        if module not in parts and value.dtype == torch.float32 and _fits_bfloat16(value)
    }
    if not narrow:
        return
    before = _try(model)
    kinds = {part: type(part) for parts in narrow.values() for part in parts}
    for value in narrow:
        value.data = value.data.to(torch.bfloat16)
    for part, kind in kinds.items():
        part.__class__ = _NARROW.get(kind, kind)
    with suppress(RuntimeError):  # of types that differ
        if all(map(torch.equal, before, _try(model))):
            return
    for value in narrow:
        value.data = value.data.to(torch.float32)
    for part, kind in kinds.items():
        part.__class__ = kind


def _fits_bfloat16(value: torch.Tensor) -> bool:
    return value.to(torch.bfloat16).to(torch.float32).equal(value)


def _try(model: LanguageModel) -> list[torch.Tensor]:
    """Return logits of a made-up text, in both precisions."""
    parameters = {
        name: value.to(model.device) for name, value in model.initial_parameters().items()
    }
    text = made_up_text(model, min(_TOKENS, getattr(model, "sequence_length", _TOKENS)), 0)
    return [each.logits(parameters, text) for each in (in_float32(model), model)]
