"""Hooks: capture each use of a parameter in one forward and backward pass over many units.

The parameters themselves require no gradient: the graph begins at the first hooked tensor. So the
backward pass skips the summed weight gradients; the per-unit products replace their arithmetic.
Gradients of hooked tensors are passed on as soon as they exist, while they are in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from fedsim.clients.engines.cross_entropy import Batch, losses_and_gradient
from fedsim.clients.engines.per_example.gradient_terms import Product, Term, Total
from fedsim.clients.engines.per_example.layer_rules import Call, Rule, rule_for
from fedsim.clients.models.dropout import row_streams
from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors

Sink = Callable[[str, Term], None]


class OpenModel(LanguageModel, Protocol):
    """A language model with access to its network; see `clients/models/transformers_model.py`."""

    @property
    def module(self) -> nn.Module:
        """The network."""
        ...

    @property
    def places(self) -> Mapping[str, str]:
        """Map from each name of a trainable parameter in the network to its first name."""
        ...

    def logits(
        self, parameters: Tensors, tokens: torch.Tensor, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return next-token logits; with `positions`, a row may hold several sequences.

        Args:
            parameters: see `LanguageModel`.
            tokens: (rows, length) int64.
            positions: (rows, length) int64, counted from 0 in each sequence of a row.
        """
        ...


class NotCovered(Exception):  # noqa: N818 (a finding, not a fault)
    """No rule describes a use of a trainable parameter; the message names the layer."""


@dataclass(frozen=True)
class HookedLayer:
    """A module with trainable parameters, and its layer rule.

    Attributes:
        place: the module's name in the network.
        module: the module.
        rule: layer rule of the module.
        names: map from the rule's attribute names to parameter names; without frozen parameters.
    """

    place: str
    module: nn.Module
    rule: Rule
    names: Mapping[str, str]


def find_layers(model: OpenModel) -> list[HookedLayer]:
    """Return every module that uses a trainable parameter.

    Raises:
        NotCovered: such a module has no rule, or the model has no method `module`.
    """
    if not hasattr(model, "module") or not hasattr(model, "places"):
        raise NotCovered("any layer of a network that does not show its modules")
    everywhere = dict(model.module.named_parameters(remove_duplicate=False))
    names = {id(everywhere[place]): name for place, name in model.places.items()}
    layers = []
    for place, module in model.module.named_modules():
        here = module.named_parameters(recurse=False)
        own = {key: names[id(value)] for key, value in here if id(value) in names}
        rule = rule_for(module)
        if rule is not None:
            borrowed = rule.borrows(module)
            own |= {k: names[id(value)] for k, value in borrowed.items() if id(value) in names}
        elif own:
            raise NotCovered(f"{place or 'the network'} ({type(module).__name__})")
        if rule is not None and own:
            layers.append(HookedLayer(place, module, rule, own))
    return layers


@contextmanager
def hooked(
    layers: Sequence[HookedLayer],
    parameters: Tensors,
    tokens: torch.Tensor,
    sink: Sink,
) -> Iterator[None]:
    """Hook the layers' tensors; call `sink` with each gradient's terms, by parameter name."""
    handles = []
    for layer in layers:
        hook = _LayerHooks(layer, parameters, tokens, sink)
        handles.append(layer.module.register_forward_pre_hook(hook.before))
        handles.append(layer.module.register_forward_hook(hook.after, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _LayerHooks:
    """The hooks of one layer in one forward pass.

    With checkpointing, a block runs first without a graph, then with one; only the second counts.
    """

    def __init__(
        self,
        layer: HookedLayer,
        parameters: Tensors,
        tokens: torch.Tensor,
        sink: Sink,
    ) -> None:
        self._layer = layer
        self._parameters = {key: parameters[name] for key, name in layer.names.items()}
        self._num_rows, self._num_tokens = len(tokens), tokens.numel()
        self._sink = sink
        self._hooks_input = layer.rule.hook == "input"

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Hook the input, if the rule needs its gradient."""
        wanted = self._hooks_input and torch.is_grad_enabled()
        return (self._start(args[0]), *args[1:]) if wanted else None

    def after(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        named: dict[str, Any],
        output: torch.Tensor,
    ) -> torch.Tensor | None:
        """Hook the output, and keep the call until its gradient exists."""
        if not args or not isinstance(output, torch.Tensor):
            raise NotCovered(f"{self._layer.place}: called in a way that no rule describes")
        if not torch.is_grad_enabled():
            return None
        tensor = args[0] if self._hooks_input else self._start(self._spread(output))
        inputs = args[0].detach()
        # Detached: the output's history holds the tensor that holds this hook, a reference cycle.
        kept = output.detach() if self._hooks_input else None
        call = partial(Call, module, others=args[1:], named=named, output=kept)
        tensor.register_hook(partial(self._deliver, call, inputs, inputs._version))
        return None if self._hooks_input else tensor

    def _spread(self, output: torch.Tensor) -> torch.Tensor:
        """Expand an output that all sequences share (such as positions) to one row per sequence.

        An output with one row for each token of all sequences stays as it is.
        """
        if output.shape[0] == 1 and isinstance(self._layer.module, nn.Embedding):
            output = output.expand(self._num_rows, *output.shape[1:])
        per_token = output.ndim == 2 and output.shape[0] == self._num_tokens
        if output.shape[0] != self._num_rows and not per_token:
            raise NotCovered(f"{self._layer.place}: its output has no row for each sequence")
        return output

    def _start(self, tensor: torch.Tensor) -> torch.Tensor:
        # Copied: some networks change an output in place, which torch forbids for a leaf.
        return tensor if tensor.requires_grad else tensor.detach().requires_grad_().clone()

    def _deliver(
        self,
        make: Callable[..., Call],
        inputs: torch.Tensor,
        version: int,
        gradient: torch.Tensor,
    ) -> None:
        if inputs._version != version:
            raise NotCovered(f"{self._layer.place}: its input was changed in place afterwards")
        # A network may be on several devices; gradients are where the parameters are.
        device = next(iter(self._parameters.values())).device
        inputs, gradient = inputs.to(device), gradient.to(device)
        call = make(
            parameters=self._parameters,
            input=inputs if inputs.dtype == torch.int64 else self._by_row(inputs),
            gradient=self._by_row(gradient),
        )
        for key, term in self._layer.rule.terms(call).items():
            if key in self._layer.names:
                # Products and sums over positions use the type of their gradient.
                late = isinstance(term, Product | Total)
                wide = term if late else term.to(self._parameters[key].dtype)
                self._sink(self._layer.names[key], wide)

    def _by_row(self, values: torch.Tensor) -> torch.Tensor:
        """Return (sequences, positions, size); other dimensions, such as heads, join positions."""
        return values.reshape(self._num_rows, -1, values.shape[-1])


def run(
    model: OpenModel,
    layers: Sequence[HookedLayer],
    parameters: Tensors,
    batch: Batch,
    sink: Sink,
) -> torch.Tensor:
    """Call `sink` with every gradient term, and return the weighted loss of each row: (rows,).

    Raises:
        NotCovered: a layer was called in a way that its rule does not describe.
    """
    frozen = {name: value.detach() for name, value in parameters.items()}
    with (
        torch.enable_grad(),
        hooked(layers, frozen, batch.tokens, sink),
        row_streams(batch.streams),
    ):
        positions = () if batch.positions is None else (batch.positions,)
        logits = model.logits(frozen, batch.tokens, *positions)
        begin, dtype = _beginning(logits)
        losses, gradient = losses_and_gradient(logits.detach(), batch, dtype)
        del logits
        torch.autograd.backward(begin, gradient)
    return losses


def _beginning(logits: torch.Tensor) -> tuple[torch.Tensor | GradientEdge, torch.dtype | None]:
    """Return where the backward pass begins, and the gradient's type there if it differs.

    If the network widened its logits to float32, the backward pass begins before the widening, with
    a gradient in the narrow type. The skipped operation may not be hooked.
    """
    node = logits.grad_fn
    if node is None or node.name() != "ToCopyBackward0" or logits._backward_hooks:
        return logits, None
    before, output = node.next_functions[0]
    assert before is not None  # noqa: S101 (a cast of what requires no gradient has no node)
    return GradientEdge(before, output), before._input_metadata[output].dtype
