"""Curvature of the loss at a public starting model.

It reads no private text: the network generates its own texts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors, l2_norm

_TEXTS, _LENGTH = 8, 16
_LEAST, _MOST, _ZERO = 1e-3, 0.5, 1e-9  # nats
_SMALLEST, _LARGEST = 2.0**-20, 2.0**6
_STEPS = 5  # number of steps of the power iteration
_NUDGE = 1e-2  # L2 norm of the parameters' change in a step of the power iteration


@dataclass(frozen=True)
class StartCurvature:
    """Loss increase from changed parameters, in nats per token, on the starting network's texts.

    Attributes:
        costs: pairs (standard deviation of noise on each parameter, loss increase), ascending; at
            least two.
        largest: largest eigenvalue of the Fisher information F: a step δ in the steepest direction
            increases the loss by largest·‖δ‖²/2.
    """

    costs: tuple[tuple[float, float], ...]
    largest: float

    @property
    def trace(self) -> float:
        """tr(F), from the smallest noise: standard deviation s increases the loss by s²·trace/2."""
        stddev, cost = self.costs[0]
        return 2.0 * cost / stddev**2

    def stddev(self, cost: float) -> float:
        """Return the noise with this cost, by linear interpolation of the logarithms of `costs`."""
        points = np.log(np.array(self.costs))
        place = min(max(int(np.searchsorted(points[:, 1], math.log(cost))), 1), len(points) - 1)
        (x, y), (x2, y2) = points[place - 1], points[place]
        return math.exp(x + (math.log(cost) - y) * (x2 - x) / (y2 - y))


def start_curvature(model: LanguageModel, most_tokens: int = _LENGTH) -> StartCurvature:
    """Measure the curvature at a model's initial parameters, to two digits.

    A cost is the Kullback-Leibler divergence of next-token distributions under one draw of noise.
    The noise doubles from pass to pass. The largest eigenvalue comes from five steps of power
    iteration, with finite differences of the divergence's gradient.

    Args:
        model: the starting model.
        most_tokens: maximum number of tokens per text; at most 16 are used.
    """
    generator = torch.Generator().manual_seed(0)  # on the CPU: equal on all machines
    start = {name: value.to(model.device) for name, value in model.initial_parameters().items()}
    texts = _own_texts(model, start, min(_LENGTH, most_tokens), generator)
    with torch.no_grad():
        before = model.logits(start, texts).log_softmax(-1).double()
    noise = {
        name: torch.randn(value.shape, generator=generator).to(model.device)
        for name, value in start.items()
    }

    def cost(stddev: float) -> float:
        with torch.no_grad():
            after = model.logits(_moved(start, noise, stddev), texts).log_softmax(-1).double()
        return float((before.exp() * (before - after)).sum(-1).mean())

    stddev = 2.0**-8
    while (least := cost(stddev)) > _LEAST and stddev > _SMALLEST:
        stddev /= 2.0
    costs = [(stddev, least if least > _ZERO else _ZERO)]
    while costs[-1][1] < _MOST and stddev < _LARGEST:
        stddev *= 2.0
        found, at_least = cost(stddev), 2.0 * costs[-1][1]
        costs.append((stddev, found if found > at_least else at_least))  # NaN becomes `at_least`
    direction: Tensors = noise
    largest = 0.0
    for _ in range(_STEPS):
        moved = _moved(start, direction, _NUDGE / (l2_norm(direction) or 1.0))
        direction = _gradient(model, moved, texts, before.exp().float())
        largest = l2_norm(direction) / _NUDGE
    return StartCurvature(tuple((x, float(f"{y:.2g}")) for x, y in costs), float(f"{largest:.2g}"))


@torch.no_grad()
def _own_texts(
    model: LanguageModel, parameters: Tensors, length: int, generator: torch.Generator
) -> torch.Tensor:
    """Return (texts, length) tokens sampled from the model."""
    texts = torch.randint(model.vocabulary_size, (_TEXTS, 1), generator=generator)
    texts = texts.to(model.device)
    while texts.shape[1] < length:
        chances = model.logits(parameters, texts)[:, -1].softmax(-1).cpu()
        drawn = torch.multinomial(chances, 1, generator=generator)
        texts = torch.cat([texts, drawn.to(model.device)], dim=1)
    return texts


def _moved(start: Tensors, direction: Tensors, length: float) -> Tensors:
    return {name: value + length * direction[name] for name, value in start.items()}


def _gradient(
    model: LanguageModel, parameters: Tensors, texts: torch.Tensor, chances: torch.Tensor
) -> Tensors:
    """Return the gradient of the mean divergence from `chances`."""
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    scores = model.logits(leaves, texts).log_softmax(-1)
    total = -(scores * chances).sum() / texts.numel()
    gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaves[name]) if one is None else one
        for name, one in zip(leaves, gradients, strict=True)
    }
