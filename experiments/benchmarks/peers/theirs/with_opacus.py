"""Per-example clipping with Opacus: per-sample gradients, or norms and a second backward pass.

Opacus has its own layer rules, so the networks are rewritten for it: `nn.Linear` for GPT-2's
`Conv1D`, position ids for each sequence, `DPLSTM` for the LSTM. Its ghost clipping refuses tied
parameters, so GPT-2's output layer then has its own weights. The LSTM's output layer always has its
own weights, without normalised embeddings, as Opacus has no layer for these.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from torch import nn
from transformers.pytorch_utils import Conv1D

from .networks import Gpt, load, mean_losses

Compute = Callable[[], dict[str, torch.Tensor]]


class PositionedGpt(nn.Module):
    """GPT-2 of linear layers, with the positions of every sequence as input."""

    def __init__(self, gpt: Gpt, *, tied: bool) -> None:
        super().__init__()
        self.network = gpt.network
        _linear_for_conv1d(self.network)
        if not tied:
            vocabulary, width = self.network.lm_head.weight.shape
            head = nn.Linear(width, vocabulary, bias=False)
            head.weight.data.copy_(self.network.lm_head.weight)
            self.network.lm_head = head

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (sequences, length, vocabulary)."""
        positions = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
        output = self.network(tokens, position_ids=positions, use_cache=False)
        logits: torch.Tensor = output.logits
        return logits


class UntiedLstm(nn.Module):
    """Embedding, DPLSTM, projection, and an output layer with its own weights."""

    def __init__(self, config: dict[str, Any], words: torch.Tensor) -> None:
        super().__init__()
        vocabulary, width = words.shape
        self.embedding = nn.Embedding(vocabulary, width, _weight=words.clone())
        self.lstm = DPLSTM(width, config["hidden_size"], batch_first=True)
        self.output_embedding = nn.Linear(config["hidden_size"], width)
        self.scores = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (sequences, length, vocabulary)."""
        states, _ = self.lstm(self.embedding(tokens))
        logits: torch.Tensor = self.scores(self.output_embedding(states))
        return logits


def _linear_for_conv1d(module: nn.Module) -> None:
    for name, child in list(module.named_children()):
        if isinstance(child, Conv1D):
            linear = nn.Linear(*child.weight.shape)
            linear.weight.data.copy_(child.weight.T)
            linear.bias.data.copy_(child.bias)
            setattr(module, name, linear)
        else:
            _linear_for_conv1d(child)


def prepare(request: dict[str, Any]) -> tuple[Compute, dict[str, Any]]:
    """Return a function that computes Σ clip(gradient) over all sequences, and notes.

    The request has `mode` ("flat", "ghost" or "fast gradient clipping"), `weights` and `tokens`
    (sequences, 1, length) as paths, and `clip`. The notes say whether weights are tied, and give
    the distance of the sum from an autograd loop over the same network.
    """
    tokens = torch.from_numpy(np.load(request["tokens"])).flatten(0, 1)
    mode, clip = request["mode"], request["clip"]
    network, tied = _network(request["weights"], mode)
    network.train()
    reference = _loop(copy.deepcopy(network), tokens, clip)
    if mode == "flat":
        compute = _flat(network, tokens, clip)
    else:
        compute = _two_passes(network, tokens, clip, ghost=mode == "ghost")
    return compute, {"tied": tied, "relative_difference": _distance(compute(), reference)}


def _network(path: str, mode: str) -> tuple[nn.Module, bool]:
    config, state = load(path)
    torch.manual_seed(0)
    if "hidden_size" in config:
        return UntiedLstm(config, state["embedding.weight"]), False
    tied = mode != "ghost"
    return PositionedGpt(Gpt(config, state), tied=tied), tied


def _optimizer(kind: type[Any], module: nn.Module, tokens: torch.Tensor, clip: float) -> Any:  # noqa: ANN401 (Opacus has no types)
    """Return an optimizer that clips and sums, and adds no noise."""
    return kind(
        torch.optim.SGD(module.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        expected_batch_size=len(tokens),
        loss_reduction="sum",
    )


def _flat(network: nn.Module, tokens: torch.Tensor, clip: float) -> Compute:
    module = GradSampleModule(network, loss_reduction="sum", strict=False)
    optimizer = _optimizer(DPOptimizer, module, tokens, clip)

    def compute() -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = mean_losses(module(tokens), tokens).sum()
        torch.autograd.backward(loss)
        optimizer.clip_and_accumulate()
        # the attribute that Opacus sets
        return {name: vars(value)["summed_grad"] for name, value in network.named_parameters()}

    return compute


def _two_passes(network: nn.Module, tokens: torch.Tensor, clip: float, *, ghost: bool) -> Compute:
    module = GradSampleModuleFastGradientClipping(
        network,
        loss_reduction="sum",
        max_grad_norm=clip,
        use_ghost_clipping=ghost,
        strict=False,
    )
    optimizer = _optimizer(DPOptimizerFastGradientClipping, module, tokens, clip)

    def compute() -> dict[str, torch.Tensor]:
        optimizer.zero_grad(set_to_none=True)
        losses = mean_losses(module(tokens), tokens)
        DPTensorFastGradientClipping(module, optimizer, losses, "sum").backward()
        return {
            name: value.grad for name, value in network.named_parameters() if value.grad is not None
        }

    return compute


def _loop(network: nn.Module, tokens: torch.Tensor, clip: float) -> dict[str, torch.Tensor]:
    """Return the reference sum, with one backward pass per sequence."""
    parameters = dict(network.named_parameters())
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for row in torch.split(tokens, 1):
        loss = mean_losses(network(row), row).sum()
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        factor = min(1.0, clip / float(norm))
        for name, gradient in zip(parameters, gradients, strict=True):
            total[name].add_(gradient, alpha=factor)
    return total


def _distance(total: dict[str, torch.Tensor], reference: dict[str, torch.Tensor]) -> float:
    differences = [(total[name] - value).norm() for name, value in reference.items()]
    size = torch.stack([value.norm() for value in reference.values()]).norm()
    return float(torch.stack(differences).norm() / size)
