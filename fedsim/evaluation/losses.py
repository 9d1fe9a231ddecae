"""The loss of an example, and what evaluation counts."""

from __future__ import annotations

import torch
from torch.nn import functional as F


def token_losses(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of every token but the first, in nats.

    Args:
        logits: (batch, length, vocabulary).
        tokens: (batch, length) int64.

    Returns:
        (batch, length - 1); entry t belongs to the prediction of token t + 1.
    """
    # Flat, because the vocabulary then stays the innermost size: moving it costs two copies.
    flat = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return flat.view(tokens.shape[0], tokens.shape[1] - 1)


def predicted_mask(tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return which predictions are of real tokens: (batch, length - 1) bool."""
    positions = torch.arange(1, tokens.shape[1], device=tokens.device)
    return positions[None, :] < lengths[:, None]


def example_losses(
    logits: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Return each example's mean loss over its own predicted tokens: (batch,).

    The mean is per example, so that a long text does not count for more than a short one of the
    same user. An example without a predicted token (length under 2) has loss 0.
    """
    mask = predicted_mask(tokens, lengths)
    total = (token_losses(logits, tokens) * mask).sum(dim=1)
    return total / mask.sum(dim=1).clamp(min=1)
