"""Mixed precision: logits under bfloat16 autocast, parameters and gradients in float32.

Frozen weights that bfloat16 represents exactly (for example, of a checkpoint published in bfloat16)
stay in bfloat16. This halves their memory, and a pass keeps no casted copies for its gradient.
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
    """`model` with logits computed under `torch.autocast`; everything else is unchanged.

    The backward pass uses the types of the forward pass. Gradients of parameters, their norms and
    clipped sums have the parameters' type: a clip must use the norm of exactly the numbers that
    are summed.

    Attributes:
        exact: the model without mixed precision.
    """

    def __init__(self, model: LanguageModel) -> None:
        self.exact = model

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the model has)
        """Return the model's own attribute."""
        if name == "exact":  # not set yet, for example during a copy
            raise AttributeError(name)
        return getattr(self.exact, name)

    def logits(
        self, parameters: Tensors, tokens: torch.Tensor, *positions: torch.Tensor
    ) -> torch.Tensor:
        """Return the model's logits, with matrix products in bfloat16.

        Weights are cast in each call: cached casts of one `torch.func` transform would leak into
        the next.
        """
        device = self.exact.device.type
        with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False):
            return self.exact.logits(parameters, tokens, *positions)


def in_precision(model: LanguageModel, precision: Precision) -> LanguageModel:
    """Return the model with `precision`; for bfloat16 see also `narrow_frozen_`."""
    if precision == "float32":
        return model
    mixed = cast(LanguageModel, MixedPrecision(model))
    narrow_frozen_(mixed)
    return mixed


def in_float32(model: Model) -> Model:
    """Return the model without mixed precision."""
    return cast(Model, model.exact) if isinstance(model, MixedPrecision) else model


class NarrowLinear(nn.Linear):
    """A linear layer with a weight that may be bfloat16 while its inputs are wider."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (nn.Linear's own name)
        """Return the outputs of `nn.Linear` with the weight cast to the inputs' type."""
        mixed = torch.is_autocast_enabled(input.device.type)  # autocast accepts both types
        weight = self.weight if mixed else self.weight.to(input.dtype)
        return F.linear(input, weight, self.bias)

    def _get_name(self) -> str:
        # Printed as the original layer: a run's random draws depend on the printed network.
        return "Linear"


class NarrowEmbedding(nn.Embedding):
    """A bfloat16 embedding table that returns float32."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (nn.Embedding's own name)
        """Return the outputs of `nn.Embedding` with a float32 table."""
        return super().forward(input).to(torch.float32)

    def _get_name(self) -> str:
        return "Embedding"


_NARROW: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: NarrowLinear,
    nn.Embedding: NarrowEmbedding,
}
_TOKENS = 8  # maximum length of a made-up text


@torch.no_grad()
def narrow_frozen_(model: LanguageModel) -> None:
    """Store frozen weights of linear layers and tables in bfloat16 if that is exact.

    Logits stay the same bit for bit, also in float32. A trial on a made-up text checks this; if it
    fails (a network that reads a layer's weight directly), nothing is changed. Nothing is changed
    either if the model hides its network or trains all parameters.

    Args:
        model: model in mixed precision; its network is changed in place.
    """
    module, moving = module_of(model), getattr(model, "places", {})
    layers: dict[nn.Parameter, list[nn.Module]] = {}
    for place, value in module.named_parameters(remove_duplicate=False):
        above, _, name = place.rpartition(".")
        layer = module.get_submodule(above)
        of_the_layer = {f"{above}.{own}" for own, _ in layer.named_parameters(recurse=False)}
        known = type(layer) in _NARROW or isinstance(layer, NarrowLinear)
        fits = known and name == "weight" and not moving.keys() & of_the_layer
        # `module` marks a value that stays in float32.
        layers.setdefault(value, []).append(layer if fits else module)
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
    with suppress(RuntimeError):  # raised if types differ
        if all(map(torch.equal, before, _try(model))):
            return
    for value in narrow:
        value.data = value.data.to(torch.float32)
    for part, kind in kinds.items():
        part.__class__ = kind


def _fits_bfloat16(value: torch.Tensor) -> bool:
    return value.to(torch.bfloat16).to(torch.float32).equal(value)


def _try(model: LanguageModel) -> list[torch.Tensor]:
    """Return the logits of a made-up text, in both precisions."""
    parameters = {
        name: value.to(model.device) for name, value in model.initial_parameters().items()
    }
    text = made_up_text(model, min(_TOKENS, getattr(model, "sequence_length", _TOKENS)), 0)
    return [each.logits(parameters, text) for each in (in_float32(model), model)]
