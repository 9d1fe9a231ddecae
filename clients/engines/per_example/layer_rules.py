"""Layer rules: from a layer's input and output gradient to the gradient terms of its parameters.

A rule is found by a module's exact class, since a subclass may compute something else. A model with
a layer without a rule is computed by `loop`; that a rule fits is verified by numbers before it is
used (`verification.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from fedsim.clients.engines.per_example.gradient_terms import Product, Rows, Term, Total
from fedsim.clients.models.lstm_recurrence import Recurrence
from fedsim.clients.models.mcmahan_lstm import NormalisedRows, UnitScores


@dataclass(frozen=True)
class Call:
    """One call of a module: what a rule needs of it.

    Attributes:
        module: for its settings; by now the parameters of the pass are no longer in it.
        parameters: its trainable ones, by attribute name.
        input: its first argument.
        others: its other arguments.
        output: what it returned, where the hooked tensor is the input.
        gradient: of the summed losses with respect to the hooked tensor.
    """

    module: Any
    parameters: Mapping[str, torch.Tensor]
    input: torch.Tensor
    others: tuple[Any, ...]
    output: Any
    gradient: torch.Tensor


@dataclass(frozen=True)
class Rule:
    """The rule of a layer: how the gradients of its parameters are computed.

    Attributes:
        terms: from a call to {attribute name: term}.
        hook: the tensor whose gradient it needs.
        fits: whether the rule describes this instance of the class.
        borrows: attribute names of parameters that another module owns, and how to find them.
    """

    terms: Callable[[Call], Mapping[str, Term]]
    hook: Literal["output", "input"] = "output"
    fits: Callable[[Any], bool] = lambda _module: True
    borrows: Callable[[Any], Mapping[str, torch.Tensor]] = lambda _module: {}


def linear(call: Call) -> Mapping[str, Term]:
    """Rule of y = x·Wᵀ + b."""
    return {"weight": Product(call.gradient, call.input), "bias": Total(call.gradient)}


def conv1d(call: Call) -> Mapping[str, Term]:
    """Rule of y = x·W + b, the layer of GPT-2."""
    return {"weight": Product(call.input, call.gradient), "bias": Total(call.gradient)}


def embedding(call: Call) -> Mapping[str, Term]:
    """Rule of y = W[ids]; ids of batch size 1 (positions) stand for every sequence."""
    ids = call.input.expand(call.gradient.shape[:-1])
    return {"weight": Rows(ids, call.gradient, call.module.num_embeddings)}


def layer_norm(call: Call) -> Mapping[str, Term]:
    """Rule of y = w ⊙ (x − mean)/std + b."""
    module = call.module
    plain = F.layer_norm(call.input, module.normalized_shape, eps=module.eps)
    return {"weight": Total(call.gradient * plain), "bias": Total(call.gradient)}


def rms_norm(call: Call) -> Mapping[str, Term]:
    """Rule of y = w ⊙ x/rms(x), as Llama, Mistral and Qwen compute it."""
    size = (call.input.shape[-1],)
    plain = F.rms_norm(call.input, size, eps=call.module.variance_epsilon)
    return {"weight": Total(call.gradient * plain)}


def recurrence(call: Call) -> Mapping[str, Term]:
    """gates(t) = from_input(t) + W·h(t−1): the gradient of its input is that of the gates."""
    before = F.pad(call.output[:, :-1], (0, 0, 1, 0))
    return {"weight": Product(call.gradient, before)}


def unit_scores(call: Call) -> Mapping[str, Term]:
    """Rule of y = x·(W at norm 1)ᵀ, W borrowed from the embedding."""
    (words,) = call.others
    chain = NormalisedRows(call.parameters["embedding"], words.inverse)
    return {"embedding": Product(call.gradient, call.input, chain)}


def _plain_embedding(module: nn.Embedding) -> bool:
    special = (module.padding_idx, module.max_norm)
    return special == (None, None) and not module.scale_grad_by_freq and not module.sparse


def _over_the_last_size(module: nn.LayerNorm) -> bool:
    return len(module.normalized_shape) == 1


def _only_a_weight(module: nn.Module) -> bool:
    names = [name for name, _ in module.named_parameters()]
    return names == ["weight"] and hasattr(module, "variance_epsilon")


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(linear),
    Conv1D: Rule(conv1d),
    nn.Embedding: Rule(embedding, fits=_plain_embedding),
    nn.LayerNorm: Rule(layer_norm, fits=_over_the_last_size),
    Recurrence: Rule(recurrence, hook="input"),
    UnitScores: Rule(unit_scores, borrows=lambda module: {"embedding": module.embedding.weight}),
}
_RMS_NORM = Rule(rms_norm, fits=_only_a_weight)


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule that describes `module`, or None.

    Every model family of transformers has an RMSNorm class of its own with the same arithmetic;
    they are told by name and by `variance_epsilon` (Gemma's, which adds 1 to the weight, calls
    it `eps`).
    """
    rule = RULES.get(type(module))
    if rule is None and type(module).__name__.endswith("RMSNorm"):
        rule = _RMS_NORM
    return rule if rule is not None and rule.fits(module) else None
