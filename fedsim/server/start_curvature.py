"""How sharply a public starting point reacts when its parameters move.

No private text is read: the network continues texts of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors

_TEXTS, _LENGTH = 8, 32
_PASSES = 4  # over them for the trace
_STEPS = 5  # of the power iteration
_NUDGE = 1e-2  # L2 norm of the change of the parameters in a step of it


@dataclass(frozen=True)
class StartCurvature:
    """Fisher information of the next token at the starting parameters, in nats.

    The parameters θ + δ lose about δᵀFδ/2 nats per token against θ, on text of θ's own.

    Attributes:
        trace: of F. Noise of standard deviation s on each parameter loses s²·trace/2.
        largest: the largest eigenvalue of F: the steepest direction.
    """

    trace: float
    largest: float


def start_curvature(
    model: LanguageModel, most_tokens: int = _LENGTH, seed: int = 0
) -> StartCurvature:
    """Measure the curvature at a model's initial parameters, to two digits.

    Args:
        model: at its start.
        most_tokens: of a text, if they are fewer than 32.
        seed: of the texts.

    The trace is the mean squared norm of the gradient of log p(token), the token drawn from the
    model: four passes over eight texts. The largest eigenvalue comes from five steps of power
    iteration, which are differences of the gradient of a Kullback-Leibler divergence.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    start = {name: value.to(model.device) for name, value in model.initial_parameters().items()}
    texts = _own_texts(model, start, min(_LENGTH, most_tokens), generator)
    with torch.no_grad():
        before = model.logits(start, texts).log_softmax(-1)
    draws = before.exp().flatten(0, 1)
    squares = [
        _square(_gradient(model, start, texts, _chosen(draws, generator))) for _ in range(_PASSES)
    ]
    trace = math.fsum(squares) / (_PASSES * texts.numel())
    direction: Tensors = {
        name: torch.randn(value.shape, generator=generator, device=model.device)
        for name, value in start.items()
    }
    largest = 0.0
    for _ in range(_STEPS):
        scale = _NUDGE / math.sqrt(_square(direction) or 1.0)
        moved = {name: value + scale * direction[name] for name, value in start.items()}
        direction = _gradient(model, moved, texts, -before.exp() / texts.numel())
        largest = math.sqrt(_square(direction)) / _NUDGE
    return StartCurvature(float(f"{trace:.2g}"), float(f"{largest:.2g}"))


@torch.no_grad()
def _own_texts(
    model: LanguageModel, parameters: Tensors, length: int, generator: torch.Generator
) -> torch.Tensor:
    """Return (texts, length) tokens that the model draws one after the other."""
    texts = torch.randint(
        model.vocabulary_size, (_TEXTS, 1), generator=generator, device=model.device
    )
    while texts.shape[1] < length:
        chances = model.logits(parameters, texts)[:, -1].softmax(-1)
        drawn = torch.multinomial(chances, 1, generator=generator)
        texts = torch.cat([texts, drawn], dim=1)
    return texts


def _chosen(chances: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return ones at tokens that are drawn by their chances, zeros elsewhere."""
    drawn = torch.multinomial(chances, 1, generator=generator)
    return torch.zeros_like(chances).scatter_(1, drawn, 1.0)


def _gradient(
    model: LanguageModel, parameters: Tensors, texts: torch.Tensor, weights: torch.Tensor
) -> Tensors:
    """Return the gradient of the weighted sum of log p over texts, places and tokens."""
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    scores = model.logits(leaves, texts).log_softmax(-1)
    total = (scores * weights.view(scores.shape)).sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaves[name]) if one is None else one
        for name, one in zip(leaves, found, strict=True)
    }


def _square(values: Tensors) -> float:
    return math.fsum(float(value.double().square().sum()) for value in values.values())
