"""Forward passes of layers over a stack of parameters, (users, *shape), one set for each user.

Sequences stand user by user, as many for each, and each uses its own user's parameters. What is
frozen is not stacked: all share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch.func import vmap

from fedsim.clients.engines.per_example import layer_rules
from fedsim.clients.engines.per_example.capture import HookedLayer
from fedsim.clients.models.lstm_recurrence import Recurrence
from fedsim.clients.models.mcmahan_lstm import inverse_norms


class Stack(NamedTuple):
    """The layout of a batch: `rows` sequences for each of `users`, side by side."""

    users: int
    rows: int


@contextmanager
def stacked_forwards(layers: Sequence[HookedLayer], stack: Stack) -> Iterator[None]:
    """Make the modules run over stacks, in the places of their trainable parameters."""
    try:
        for layer in layers:
            run = _FORWARDS.get(layer.rule.terms, _by_vmap)
            layer.module.forward = partial(run, layer, stack)
        yield
    finally:
        for layer in layers:
            layer.module.__dict__.pop("forward", None)


def _linear(layer: HookedLayer, stack: Stack, inputs: torch.Tensor) -> torch.Tensor:
    """Y = x·Wᵀ + b."""
    module: Any = layer.module
    return _product(inputs, _stack(module.weight, 2, stack).mT, module.bias, stack)


def _conv1d(layer: HookedLayer, stack: Stack, inputs: torch.Tensor) -> torch.Tensor:
    """Y = x·W + b."""
    module: Any = layer.module
    return _product(inputs, _stack(module.weight, 2, stack), module.bias, stack)


def _unit_scores(layer: HookedLayer, stack: Stack, inputs: torch.Tensor) -> torch.Tensor:
    """Y = x·Wᵀ/norms: scaling the scores takes less time than scaling all tables."""
    module: Any = layer.module
    rows = module.embedding.weight
    vectors = inputs.reshape(stack.users, -1, inputs.shape[-1])
    scores = torch.bmm(vectors, rows.mT).mul_(inverse_norms(rows).mT)
    return scores.view(*inputs.shape[:-1], -1)


def _recurrence(layer: HookedLayer, stack: Stack, from_inputs: torch.Tensor) -> torch.Tensor:
    """gates(t) = from_inputs(t) + W·h(t−1)."""
    by_user = from_inputs.view(*stack, *from_inputs.shape[1:])
    return Recurrence.forward(cast(Recurrence, layer.module), by_user).flatten(0, 1)


def _by_vmap(layer: HookedLayer, stack: Stack, *args: Any, **named: Any) -> torch.Tensor:  # noqa: ANN401
    """Run the module's own forward for each user; a tensor of one row, positions, is for all."""
    module: Any = layer.module
    values = [*args, *named.values()]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    each = [
        value.expand(stack.users * stack.rows, *value.shape[1:]).reshape(*stack, *value.shape[1:])
        for value in tensors
    ]
    parameters = module._parameters

    def of_user(own: dict[str, torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
        rest = iter(given)
        filled = [next(rest) if isinstance(value, torch.Tensor) else value for value in values]
        module._parameters = {**parameters, **own}
        by_name = dict(zip(named, filled[len(args) :], strict=True))
        result: torch.Tensor = type(module).forward(module, *filled[: len(args)], **by_name)
        return result

    try:
        own = {key: parameters[key] for key in layer.names}
        output: torch.Tensor = vmap(of_user)(own, *each)
        return output.flatten(0, 1)
    finally:
        module._parameters = parameters


def _stack(value: torch.Tensor, own_dims: int, stack: Stack) -> torch.Tensor:
    return value if value.dim() > own_dims else value.expand(stack.users, *value.shape)


def _product(
    inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stack: Stack
) -> torch.Tensor:
    rows = inputs.reshape(stack.users, -1, inputs.shape[-1])
    if bias is None:
        output = torch.bmm(rows, weight)
    else:
        output = torch.baddbmm(_stack(bias, 1, stack)[:, None, :], rows, weight)
    return output.view(*inputs.shape[:-1], weight.shape[-1])


_FORWARDS: dict[Callable[..., Any], Callable[..., torch.Tensor]] = {
    layer_rules.linear: _linear,
    layer_rules.conv1d: _conv1d,
    layer_rules.recurrence: _recurrence,
    layer_rules.unit_scores: _unit_scores,
}
