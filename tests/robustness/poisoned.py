"""A language model whose gradients are NaN, infinite, huge or tiny for chosen examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors


class _Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied row by row; goes through `vmap` and `grad`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """Return the values."""
        return values.clone()

    @staticmethod
    def setup_context(
        ctx: Any,  # noqa: ANN401 (torch names no type with these attributes)
        inputs: tuple[torch.Tensor, torch.Tensor],
        output: torch.Tensor,
    ) -> None:
        """Keep the factors."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        gradient: torch.Tensor,
    ) -> tuple[torch.Tensor, None]:
        """Return the gradient of each row (first size) times its factor."""
        (factors,) = ctx.saved_tensors
        return gradient * factors.view(-1, *[1] * (gradient.ndim - 1)), None


class PoisonedModel:
    """`model`, its gradients scaled by factors that hang on an example's first word.

    The forward pass is the model's own, and so is the arithmetic of every engine on it: hooks,
    layer rules, `vmap`. One factor is on the gradient of the logits, so on all layers; the other
    on that of a block's output, so on the layers up to there alone.
    """

    def __init__(self, model: LanguageModel, block: nn.Module) -> None:
        """Take a model that nobody else uses, and the block."""
        self._model = model
        self._table = torch.ones(model.vocabulary_size, 2)
        self._of_block: torch.Tensor | None = None
        block.register_forward_hook(self._after_block)

    def poison(self, factors: dict[int, tuple[float, float]]) -> None:
        """Set the two factors for examples whose first word has these ids; 1 for all others."""
        self._table.fill_(1.0)
        for word, both in factors.items():
            self._table[word] = torch.tensor(both)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the model has)
        """Return the model's own attribute."""
        if name == "_model":
            raise AttributeError(name)
        return getattr(self._model, name)

    def logits(self, parameters: Tensors, tokens: torch.Tensor) -> torch.Tensor:
        """Return the model's logits."""
        factors = self._table[tokens[:, 1]]  # behind the begin token
        self._of_block = factors[:, 1]
        try:
            logits: torch.Tensor = self._model.logits(parameters, tokens)
        finally:
            self._of_block = None
        scaled: torch.Tensor = _Scaled.apply(logits, factors[:, 0])  # type: ignore[no-untyped-call]
        return scaled

    def _after_block(self, module: nn.Module, args: object, output: Any) -> Any:  # noqa: ANN401
        if self._of_block is None:
            return output
        if isinstance(output, tuple):
            return (_Scaled.apply(output[0], self._of_block), *output[1:])  # type: ignore[no-untyped-call]
        return _Scaled.apply(output, self._of_block)  # type: ignore[no-untyped-call]
