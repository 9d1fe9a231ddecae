"""Forward passes of the layers over a stack of parameters, one set of weights for each user.

A sequence uses the weights of its user; users' sequences stand side by side, as many for each. A
frozen parameter is not stacked: all users share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from fedsim.clients.engines.per_example.capture import HookedLayer
from fedsim.clients.models.lstm_recurrence import Recurrence, recur
from fedsim.clients.models.mcmahan_lstm import UnitRows, UnitScores

# Of recurrent weights: sixteen users' of the built-in LSTM, which a small machine's cache keeps.
_CACHE_BYTES = 16 * 2**20


class Stack(NamedTuple):
    """The layout of a batch: `rows` sequences for each of `users`, side by side."""

    users: int
    rows: int


def even_parts(count: int, most: int) -> int:
    """Return how many of `count` to take at once: in as few parts as `most` allows, of even size.

    A short part takes as many calls as a full one.
    """
    return math.ceil(count / math.ceil(count / most))


# (module, stack, the module's own arguments) -> what its forward returns.
Forward = Callable[..., torch.Tensor]


def linear(module: nn.Linear, stack: Stack, inputs: torch.Tensor) -> torch.Tensor:
    """Run y = x·Wᵀ + b."""
    return _product(inputs, _stack(module.weight, 2, stack).mT, module.bias, stack)


def conv1d(module: Any, stack: Stack, inputs: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    """Run y = x·W + b."""
    return _product(inputs, _stack(module.weight, 2, stack), module.bias, stack)


def embedding(module: nn.Embedding, stack: Stack, ids: torch.Tensor) -> torch.Tensor:
    """Run y = W[ids]; ids of batch size 1 (positions) stand for every user's sequences."""
    return _rows(module.weight, stack, ids)


def layer_norm(module: nn.LayerNorm, stack: Stack, inputs: torch.Tensor) -> torch.Tensor:
    """Run y = w ⊙ (x − mean)/std + b."""
    plain = F.layer_norm(inputs, module.normalized_shape, eps=module.eps)
    return _scaled(plain, module.weight, module.bias, stack)


def rms_norm(module: Any, stack: Stack, inputs: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
    """Run y = w ⊙ x/rms(x)."""
    plain = F.rms_norm(inputs, (inputs.shape[-1],), eps=module.variance_epsilon)
    return _scaled(plain, module.weight, None, stack)


def recurrence(module: Recurrence, stack: Stack, from_inputs: torch.Tensor) -> torch.Tensor:
    """Run the module's own arithmetic, which takes a stack, a few users at a time.

    Every position reads the weights of all users that run together: from a CPU's cache, where
    they fit, four times faster than from memory.
    """
    weight = module.weight
    if weight.dim() == 2 or weight.device.type != "cpu":
        return recur(from_inputs, weight)
    few = even_parts(stack.users, max(1, _CACHE_BYTES // weight[0].nbytes))
    rows = stack.rows
    parts = [
        recur(from_inputs[first * rows : (first + few) * rows], weight[first : first + few])
        for first in range(0, stack.users, few)
    ]
    return torch.cat(parts)


def unit_scores(
    _module: UnitScores, stack: Stack, inputs: torch.Tensor, words: UnitRows
) -> torch.Tensor:
    """Run y = x·(W at norm 1)ᵀ."""
    return _product(inputs, _stack(words.rows, 2, stack).mT, None, stack)


FORWARDS: dict[type[nn.Module], Forward] = {
    nn.Linear: linear,
    Conv1D: conv1d,
    nn.Embedding: embedding,
    nn.LayerNorm: layer_norm,
    Recurrence: recurrence,
    UnitScores: unit_scores,
}


def forward_for(module: nn.Module) -> Forward | None:
    """Return how to run `module` over a stack, or None; see `layer_rules.rule_for`."""
    forward = FORWARDS.get(type(module))
    if forward is None and type(module).__name__.endswith("RMSNorm"):
        return rms_norm
    return forward


@contextmanager
def stacked_forwards(layers: Sequence[HookedLayer], stack: Stack) -> Iterator[None]:
    """Make the layers' modules run over stacks in the places of their parameters."""
    changed = [(layer.module, forward_for(layer.module)) for layer in layers]
    try:
        for module, forward in changed:
            assert forward is not None  # noqa: S101 (asked before)
            module.forward = partial(forward, module, stack)
        yield
    finally:
        for module, _ in changed:
            module.__dict__.pop("forward", None)


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


def _scaled(
    plain: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stack: Stack
) -> torch.Tensor:
    rows = plain.view(stack.users, -1, plain.shape[-1])
    factor = _stack(weight, 1, stack)[:, None, :]
    if bias is None:
        return (rows * factor).view_as(plain)
    return torch.addcmul(_stack(bias, 1, stack)[:, None, :], rows, factor).view_as(plain)


def _rows(table: torch.Tensor, stack: Stack, ids: torch.Tensor) -> torch.Tensor:
    if table.dim() == 2:
        return F.embedding(ids, table)
    each = ids.expand(stack.users * stack.rows, -1)
    first = torch.arange(stack.users, device=ids.device).repeat_interleave(stack.rows)
    return F.embedding(each + first[:, None] * table.shape[1], table.flatten(0, 1))
