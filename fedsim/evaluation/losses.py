"""The loss of an example, and what evaluation counts.

A block of tokens holds ids, and -1 - id for a *context token*: the network reads it, and its
prediction does not count.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def token_ids(tokens: torch.Tensor) -> torch.Tensor:
    """Return the ids that the network reads, those of context tokens too: int64, same shape."""
    return tokens ^ (tokens >> 63)  # the shift is -1 for a context token, and -1 - id is ~id


def token_losses(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of every token but the first, in nats.

    Args:
        logits: (batch, length, vocabulary).
        tokens: (batch, length) int64.

    Returns:
        (batch, length - 1); entry t belongs to the prediction of token t + 1.
    """
    # Flat, because the vocabulary then stays the innermost size: moving it costs two copies. The
    # last position, which predicts nothing, is computed too: leaving it out would be a copy.
    targets = token_ids(tokens).roll(-1, dims=1)
    flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view(targets.shape)[:, :-1]


def predicted_mask(tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return which predictions count: of tokens that are neither padding nor context.

    Args:
        tokens: (batch, length) int64.
        lengths: (batch,) int64.

    Returns:
        (batch, length - 1) bool; entry t belongs to the prediction of token t + 1.
    """
    positions = torch.arange(1, tokens.shape[1], device=tokens.device)
    return (positions[None, :] < lengths[:, None]) & (tokens[:, 1:] >= 0)


def example_losses(
    logits: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Return each example's mean loss over its own predicted tokens: (batch,).

    The mean is per example, so that a long text does not count for more than a short one of the
    same user. An example without a token that counts has loss 0.
    """
    mask = predicted_mask(tokens, lengths)
    total = (token_losses(logits, tokens) * mask).sum(dim=1)
    return total / mask.sum(dim=1).clamp(min=1)
