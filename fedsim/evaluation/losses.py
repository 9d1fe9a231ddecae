"""The loss of an example, and the predictions that evaluation counts.

A block of tokens holds ids, or -1 - id for a *context token*. The network reads context tokens, but
their predictions do not count.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F


def token_ids(tokens: torch.Tensor) -> torch.Tensor:
    """Return the ids of all tokens, including context tokens: int64, same shape."""
    return tokens ^ (tokens >> 63)  # the shift is -1 for a context token, and -1 - id is ~id


def token_losses(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of each token except the first, in nats.

    Args:
        logits: (batch, length, vocabulary).
        tokens: (batch, length) int64.

    Returns:
        (batch, length - 1); entry t belongs to the prediction of token t + 1.
    """
    # Flatten, so that the vocabulary stays the innermost dimension: moving it costs two copies.
    # The last position has no prediction but is computed too, because slicing it off would copy.
    targets = token_ids(tokens).roll(-1, dims=1)
    flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view(targets.shape)[:, :-1]


def predicted_mask(tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Return the mask of counted predictions: those of tokens that are neither padding nor context.

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
    """Return each example's mean loss over its predicted tokens: (batch,).

    The mean is per example, so that long and short texts of a user have equal weight. An example
    without predicted tokens has loss 0.
    """
    mask = predicted_mask(tokens, lengths)
    total = (token_losses(logits, tokens) * mask).sum(dim=1)
    return total / mask.sum(dim=1).clamp(min=1)
