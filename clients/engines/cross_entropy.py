"""The example losses of `fedsim.losses` with their gradient in closed form, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedsim.losses import predicted_mask


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences and what each counts for.

    Attributes:
        tokens: (sequences, length) int64, padded on the right.
        lengths: (sequences,) int64.
        weights: (sequences,), the factor of each sequence's loss.
        streams: (sequences,) int64 for dropout, or None.
    """

    tokens: torch.Tensor
    lengths: torch.Tensor
    weights: torch.Tensor
    streams: torch.Tensor | None = None


def losses_and_gradient(logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `example_losses` (sequences,), and ∂ Σ weight × loss / ∂ logits.

    The gradient at a position is (softmax − one-hot of the next token) × weight over the number
    of the sequence's predicted tokens, and zero where nothing is predicted.

    Args:
        logits: (sequences, length, vocabulary).
        batch: the sequences.
    """
    mask = torch.nn.functional.pad(predicted_mask(batch.tokens, batch.lengths), (0, 1))
    following = batch.tokens.roll(-1, dims=1)[..., None]  # the last one is masked
    counts = mask.sum(dim=1).clamp(min=1)
    shares = mask.to(logits.dtype) * (batch.weights / counts).to(logits.dtype)[:, None]
    gradient = torch.softmax(logits, dim=-1)
    chances = gradient.gather(-1, following)[..., 0]
    nats = -chances.log()
    if bool((chances == 0).any()):  # too unlikely for the softmax to tell how much
        exact = logits.logsumexp(-1) - logits.gather(-1, following)[..., 0]
        nats = torch.where(chances == 0, exact, nats)
    losses = torch.where(mask, nats, 0.0).sum(dim=1) / counts
    gradient.mul_(shares[..., None]).scatter_add_(-1, following, -shares[..., None])
    return losses, gradient
