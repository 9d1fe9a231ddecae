"""Training without privacy: forward and backward in large batches, and a plain sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional as F

from fedsim.execution import Unit
from fedsim.experiments.benchmarks.engines.cases import Workload

BATCH_SIZES = (32, 64, 128)
_NOT_PREDICTED = -100


def floor(work: Workload, batch_size: int) -> list[torch.Tensor]:
    """Return the sum of all examples' gradients: the computation of training without privacy.

    The loss is as cheap as it can be: the logits are not copied, and what is not predicted is
    left out by its label.

    Args:
        work: whose units have examples of one length.
        batch_size: sequences at a time.
    """
    tokens = torch.cat([unit.tokens for unit in work.units])
    total: list[torch.Tensor] = []
    for rows in torch.split(tokens.to(work.model.device), batch_size):
        leaves = {name: value.detach().requires_grad_() for name, value in work.parameters.items()}
        loss = summed_loss(work.model.logits(leaves, rows), rows)
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        if total:
            torch._foreach_add_(total, gradients)
        else:
            total = list(gradients)
    return total


def summed_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the sum over whole examples of the mean loss of their predicted tokens."""
    labels = F.pad(tokens[:, 1:], (0, 1), value=_NOT_PREDICTED)
    loss = F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=_NOT_PREDICTED, reduction="sum"
    )
    return loss / (tokens.shape[1] - 1)


def num_examples(units: Sequence[Unit]) -> int:
    """Return the number of examples of all units."""
    return sum(len(unit.lengths) for unit in units)
