"""Layer rules: from a layer's input and output gradient to the gradient terms of its parameters.

A rule is found by a module's exact class (a subclass may compute something else), or by the name
that transformers gives a kind of layer in every model family. If a layer of the model has no rule,
the engine is `vmap`, or `loop` if torch cannot vectorise the model. Every rule is verified
numerically before use (`verification.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

from fedsim.clients.engines.per_example.gradient_terms import (
    Product,
    Rows,
    Term,
    Total,
)
from fedsim.clients.models.gpu_kernels import AlignedLinear
from fedsim.clients.models.lstm_recurrence import Recurrence
from fedsim.clients.models.mcmahan_lstm import NormalisedRows, UnitScores, inverse_norms


@dataclass(frozen=True)
class Call:
    """One call of a module, as a rule needs it.

    Attributes:
        module: the module, for its settings; it no longer holds the parameters of the pass.
        parameters: its trainable parameters, by attribute name.
        input: its first argument.
        others: its other arguments.
        named: its arguments by name.
        output: its output, if the hooked tensor is the input.
        gradient: gradient of the summed losses with respect to the hooked tensor.
    """

    module: Any
    parameters: Mapping[str, torch.Tensor]
    input: torch.Tensor
    others: tuple[Any, ...]
    named: Mapping[str, Any]
    output: torch.Tensor | None
    gradient: torch.Tensor


@dataclass(frozen=True)
class Rule:
    """The rule of a layer: how the gradients of its parameters are computed.

    Attributes:
        terms: function from a call to {attribute name: term}.
        hook: tensor whose gradient the rule needs.
        fits: whether the rule describes this instance of the class.
        borrows: attribute names of parameters of another module, with functions to find them.
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
    """Rule of y = W[ids]; ids of batch size 1 (positions) apply to every sequence."""
    ids = call.input.expand(call.gradient.shape[:-1])
    return {"weight": Rows(ids, call.gradient, call.module.num_embeddings)}


def scaled_embedding(call: Call) -> Mapping[str, Term]:
    """Rule of y = scale·W[ids], the words of Gemma."""
    return embedding(replace(call, gradient=call.gradient * call.module.embed_scale))


def positional_embedding(call: Call) -> Mapping[str, Term]:
    """Rule of y = W[ids] with ids that the module computes, the positions of OPT."""
    # Looking up in a table of row numbers gives the ids.
    numbers = torch.arange(call.module.num_embeddings, device=call.gradient.device)
    table = {"weight": numbers.double()[:, None]}
    arguments = (call.input, *call.others)
    found = torch.func.functional_call(call.module, table, arguments, dict(call.named))
    return embedding(replace(call, input=found[..., 0].long()))


def layer_norm(call: Call) -> Mapping[str, Term]:
    """Rule of y = w ⊙ (x − mean)/std + b; Nemotron has 1 + w instead of w."""
    plain = F.layer_norm(call.input, call.input.shape[-1:], eps=_eps(call.module))
    return {"weight": Total(call.gradient * plain), "bias": Total(call.gradient)}


def rms_norm(call: Call) -> Mapping[str, Term]:
    """Rule of y = w ⊙ x/rms(x) (Llama, Mistral, Qwen) and of y = (1 + w) ⊙ x/rms(x) (Gemma)."""
    plain = F.rms_norm(call.input, call.input.shape[-1:], eps=_eps(call.module))
    return {"weight": Total(call.gradient * plain)}


def _eps(norm: Any) -> float:  # noqa: ANN401 (transformers sets the attributes)
    return float(norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps)


def recurrence(call: Call) -> Mapping[str, Term]:
    """Rule of gates(t) = from_input(t) + W·h(t−1): its input's gradient is that of the gates."""
    assert call.output is not None  # noqa: S101 (the hooked tensor is the input)
    before = F.pad(call.output[:, :-1], (0, 0, 1, 0))
    return {"weight": Product(call.gradient, before)}


def unit_scores(call: Call) -> Mapping[str, Term]:
    """Rule of y = x·(W with rows of norm 1)ᵀ; W belongs to the embedding."""
    rows = call.parameters["embedding"]
    chain = NormalisedRows(rows, inverse_norms(rows))
    return {"embedding": Product(call.gradient, call.input, chain)}


def _plain_embedding(module: nn.Module) -> bool:
    if not isinstance(module, nn.Embedding):  # another class with the same name
        return False
    special = (module.padding_idx, module.max_norm)
    return special == (None, None) and not module.scale_grad_by_freq and not module.sparse


def _over_the_last_size(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1


def _only_a_vector(module: nn.Module) -> bool:
    """Return whether its one weight scales the last size; Cohere's has one weight for each head."""
    return [(name, value.ndim) for name, value in module.named_parameters()] == [("weight", 1)]


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(linear),
    AlignedLinear: Rule(linear),
    Conv1D: Rule(conv1d),
    nn.Embedding: Rule(embedding, fits=_plain_embedding),
    nn.LayerNorm: Rule(layer_norm, fits=_over_the_last_size),
    Recurrence: Rule(recurrence, hook="input"),
    UnitScores: Rule(unit_scores, borrows=lambda module: {"embedding": module.embedding.weight}),
}
# Suffixes of class names: every model family of transformers defines classes with the same
# arithmetic. "LayerNorm" is not reliable: T5's is no layer norm, xLSTM's is a norm for each head.
BY_NAME: dict[str, Rule] = {
    "RMSNorm": Rule(rms_norm, fits=_only_a_vector),
    "CohereLayerNorm": Rule(layer_norm, fits=_only_a_vector),
    "Cohere2LayerNorm": Rule(layer_norm, fits=_only_a_vector),
    "NemotronLayerNorm1P": Rule(layer_norm, fits=_over_the_last_size),
    "FalconLinear": Rule(linear),
    "ScaledWordEmbedding": Rule(scaled_embedding, fits=_plain_embedding),
    "LearnedPositionalEmbedding": Rule(positional_embedding, fits=_plain_embedding),
}


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule that describes `module`, or None."""
    name = type(module).__name__
    by_name = (rule for end, rule in BY_NAME.items() if name.endswith(end))
    rule = RULES.get(type(module)) or next(by_name, None)
    return rule if rule is not None and rule.fits(module) else None
