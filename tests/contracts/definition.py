"""What engines must compute, by the definition: one sequence at a time, no padding."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Task, Unit
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials
from fedsim.tensors import Tensors, zeros_like

CLIP_MARGIN = 2e-4  # relative, by which fast engines clip more than they must, for their rounding


@dataclass(frozen=True)
class Case:
    """A task, and what its first users would add without a clip, one sequence at a time."""

    materials: Materials
    task: Task
    updates: list[tuple[float, dict[str, torch.Tensor]]]
    _sums: dict[str, WeightedSum] = field(default_factory=dict)

    def sum(self, clip: Clip) -> WeightedSum:
        """Return Σ w·clip(mean over examples of ∇ of its mean loss)."""
        if repr(clip) not in self._sums:  # every engine asks for the same ones
            self._sums[repr(clip)] = self._sum(clip)
        return self._sums[repr(clip)]

    def _sum(self, clip: Clip) -> WeightedSum:
        values = zeros_like(self.materials.model.initial_parameters(), torch.float64)
        unclipped = 0
        for weight, update in self.updates:
            clipped = clip(update)
            unclipped += all(torch.equal(clipped[n], v.double()) for n, v in update.items())
            for name, value in clipped.items():
                values[name] += weight * value
        weight = math.fsum(weight for weight, _ in self.updates)
        return WeightedSum(values, weight, len(self.updates), num_unclipped=unclipped)


def plain_mean(
    model: LanguageModel, unit: Unit, parameters: Tensors | None = None
) -> dict[str, torch.Tensor]:
    """Return the mean over a unit's examples of ∇ of their mean loss, at the start by default."""
    parameters = model.initial_parameters() if parameters is None else parameters
    mean = zeros_like(parameters)
    for row, length in zip(unit.tokens, unit.lengths.tolist(), strict=True):
        leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        own = row[None, :length]  # no padding at all
        ids = torch.where(own < 0, -1 - own, own)
        logits = model.logits(leaves, ids)
        counts = own[0, 1:] >= 0
        if not counts.any():
            continue
        loss = torch.nn.functional.cross_entropy(logits[0, :-1][counts], ids[0, 1:][counts])
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        for name, gradient in zip(leaves, gradients, strict=True):
            mean[name] += gradient / len(unit.lengths)
    return mean
