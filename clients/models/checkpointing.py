"""Activation checkpointing: blocks keep their inputs and are computed again for the gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors


class Checkpointed:
    """`model` with activations computed again, block by block; all else is the model's own.

    Gradients are those without it, to the bit where a block is computed in the same way twice.
    torch's own checkpoints will not do: the network's parameters are replaced for the length of a
    call alone, and hooks that engines put on layers must see the second computation.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the model has)
        """Return the model's own attribute."""
        if name == "_model":  # not set yet, as in a copy being made
            raise AttributeError(name)
        return getattr(self._model, name)

    def logits(
        self, parameters: Tensors, tokens: torch.Tensor, *positions: torch.Tensor
    ) -> torch.Tensor:
        """Return what the model returns."""
        if not torch.is_grad_enabled():
            return self._model.logits(parameters, tokens, *positions)
        with _recomputing(self._model.blocks):  # type: ignore[attr-defined]
            return self._model.logits(parameters, tokens, *positions)


def checkpointed(model: LanguageModel, wanted: bool) -> LanguageModel:
    """Return the model, with checkpoints if they are `wanted`; it then has `blocks`."""
    return cast(LanguageModel, Checkpointed(model)) if wanted else model


@contextmanager
def _recomputing(blocks: Sequence[nn.Module]) -> Iterator[None]:
    for block in blocks:
        block.forward = partial(_checkpoint, block)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward  # the class has its own


def _checkpoint(block: nn.Module, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    """Compute a block without a graph, and again for its gradient."""
    if not torch.is_grad_enabled():  # a block within a block
        return type(block).forward(block, *args, **kwargs)
    own = dict(block.named_parameters(prefix="block", remove_duplicate=False))
    values, structure = tree_flatten((args, kwargs))
    places = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
    given = [values[place] for place in places]
    for place in places:  # they are kept by autograd, which frees them
        values[place] = None
    body = _Body(block)

    def compute(*tensors: torch.Tensor) -> Any:  # noqa: ANN401
        filled = list(values)
        for place, tensor in zip(places, tensors, strict=False):
            filled[place] = tensor
        replaced = dict(zip(own, tensors[len(places) :], strict=True))
        arguments, options = tree_unflatten(filled, structure)
        return torch.func.functional_call(body, replaced, arguments, options, tie_weights=False)

    # What is switched on now is off in the backward pass, or in the thread that computes it.
    kind, context = given[0].device.type, copy_context()
    autocast, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def again(*tensors: torch.Tensor) -> Any:  # noqa: ANN401
        with (
            torch.enable_grad(),
            torch.autocast(kind, dtype, enabled=autocast, cache_enabled=False),
        ):
            return context.run(compute, *tensors)

    # Asks for a gradient where no tensor does: hooks may begin the graph inside the block.
    anchor = torch.empty(0, requires_grad=True)
    return _Recomputed.apply(compute, again, anchor, *given, *own.values())  # type: ignore[no-untyped-call]


class _Body(nn.Module):
    """What a block computes when nothing is in the place of its `forward`."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return type(self.block).forward(self.block, *args, **kwargs)


class _Recomputed(torch.autograd.Function):
    """Computes without a graph, and once more with one when the gradient is there."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        compute: Callable[..., Any],
        again: Callable[..., Any],
        anchor: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> Any:  # noqa: ANN401
        ctx.again = again
        ctx.save_for_backward(*tensors)
        return compute(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:  # noqa: ANN401
        needed = ctx.needs_input_grad[3:]
        inputs = [
            tensor.detach().requires_grad_(wanted)
            for tensor, wanted in zip(ctx.saved_tensors, needed, strict=True)
        ]
        outputs = ctx.again(*inputs)
        pairs = [
            (output, gradient)
            for output, gradient in zip(tree_flatten(outputs)[0], gradients, strict=True)
            if isinstance(output, torch.Tensor) and output.requires_grad
        ]
        if pairs:  # none where everything that hooks look at is detached
            torch.autograd.backward([output for output, _ in pairs], [given for _, given in pairs])
        return None, None, None, *(value.grad for value in inputs)
