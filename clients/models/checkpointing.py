"""Activation checkpointing: blocks keep only their inputs and are recomputed for the gradient."""

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
    """`model` with recomputed activations, block by block; everything else is unchanged.

    Gradients are the same as without it, bit for bit if recomputing a block is deterministic.
    torch's own checkpoints do not work here: parameters are replaced only during a call, and the
    engines' hooks on layers must see the recomputation.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the model has)
        """Return the model's own attribute."""
        if name == "_model":  # not set yet, for example during a copy
            raise AttributeError(name)
        return getattr(self._model, name)

    def logits(
        self, parameters: Tensors, tokens: torch.Tensor, *positions: torch.Tensor
    ) -> torch.Tensor:
        """Return the model's logits."""
        if not torch.is_grad_enabled():
            return self._model.logits(parameters, tokens, *positions)
        with _recomputing(self._model.blocks):  # type: ignore[attr-defined]
            return self._model.logits(parameters, tokens, *positions)


def checkpointed(model: LanguageModel, wanted: bool) -> LanguageModel:
    """Return the model, with checkpointing if `wanted`; the model must then have `blocks`."""
    return cast(LanguageModel, Checkpointed(model)) if wanted else model


@contextmanager
def _recomputing(blocks: Sequence[nn.Module]) -> Iterator[None]:
    for block in blocks:
        block.forward = partial(_checkpoint, block)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward  # back to the method of the class


def _checkpoint(block: nn.Module, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
    """Compute a block without a graph, and recompute it for its gradient."""
    if not torch.is_grad_enabled():  # a block within a block
        return type(block).forward(block, *args, **kwargs)
    own = dict(block.named_parameters(prefix="block", remove_duplicate=False))
    values, structure = tree_flatten((args, kwargs))
    places = [place for place, value in enumerate(values) if isinstance(value, torch.Tensor)]
    inputs = [values[place] for place in places]
    for place in places:  # autograd keeps them, and frees them
        values[place] = None
    body = _Body(block)

    def compute(*tensors: torch.Tensor) -> Any:  # noqa: ANN401
        filled = list(values)
        for place, tensor in zip(places, tensors, strict=False):
            filled[place] = tensor
        replaced = dict(zip(own, tensors[len(places) :], strict=True))
        arguments, options = tree_unflatten(filled, structure)
        return torch.func.functional_call(body, replaced, arguments, options, tie_weights=False)

    # Autocast and context variables may differ in the backward pass or in its thread.
    kind, context = inputs[0].device.type, copy_context()
    autocast, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def recompute(*tensors: torch.Tensor) -> Any:  # noqa: ANN401
        with (
            torch.enable_grad(),
            torch.autocast(kind, dtype, enabled=autocast, cache_enabled=False),
        ):
            return context.run(compute, *tensors)

    # Requires a gradient even if no tensor does, as hooks may begin the graph inside the block.
    anchor = torch.empty(0, requires_grad=True)
    return _Recomputed.apply(compute, recompute, anchor, *inputs, *own.values())  # type: ignore[no-untyped-call]


class _Body(nn.Module):
    """A block with the `forward` of its class."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return type(self.block).forward(self.block, *args, **kwargs)


class _Recomputed(torch.autograd.Function):
    """Computes without a graph, and recomputes with one in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        compute: Callable[..., Any],
        recompute: Callable[..., Any],
        anchor: torch.Tensor,
        *tensors: torch.Tensor,
    ) -> Any:  # noqa: ANN401
        ctx.again = recompute
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
        if pairs:  # empty if all outputs are detached
            torch.autograd.backward([output for output, _ in pairs], [given for _, given in pairs])
        return None, None, None, *(value.grad for value in inputs)
