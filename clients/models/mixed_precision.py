"""Mixed precision: logits under bfloat16 autocast, parameters and gradients in float32."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import torch

from fedsim.config import Precision
from fedsim.language_model import LanguageModel
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
    """Return the model, computing in `precision`."""
    return model if precision == "float32" else cast(LanguageModel, MixedPrecision(model))


def in_float32(model: Model) -> Model:
    """Return the model without mixed precision."""
    return cast(Model, model.exact) if isinstance(model, MixedPrecision) else model
