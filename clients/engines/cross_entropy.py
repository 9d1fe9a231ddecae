"""The example losses of `fedsim.losses` with their gradient in closed form, in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from fedsim.losses import predicted_mask


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of one or more sequences, and what each prediction counts for.

    Attributes:
        tokens: (rows, length) int64, padded on the right.
        shares: (rows, length), what the loss of predicting the token after this one counts; 0
            where there is none to predict.
        positions: (rows, length) int64 of tokens in their sequences, where rows have several; or
            None.
        streams: (rows,) int64 for dropout, or None.
        scale: what the gradient, and not the losses, is multiplied by.
    """

    tokens: torch.Tensor
    shares: torch.Tensor
    positions: torch.Tensor | None = None
    streams: torch.Tensor | None = None
    scale: float = 1.0


def mean_shares(tokens: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return shares, (rows, length), for one sequence a row, whose mean loss counts its weight.

    Args:
        tokens: (rows, length) int64, padded on the right.
        lengths: (rows,) int64.
        weights: (rows,).
    """
    mask = pad(predicted_mask(tokens, lengths), (0, 1))  # nothing follows the last token
    return mask * (weights / mask.sum(dim=1).clamp(min=1))[:, None]


def losses_and_gradient(logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Σ share × loss of each row, (rows,), and scale times their gradient by the logits.

    The gradient at a position is (softmax − one-hot of the next token) × share.

    Args:
        logits: (rows, length, vocabulary).
        batch: the rows.
    """
    following = batch.tokens.roll(-1, dims=1)[..., None]  # the last one has no share
    shares = batch.shares.to(logits.dtype)
    gradient = torch.softmax(logits, dim=-1)
    chances = gradient.gather(-1, following)[..., 0]
    nats = -chances.log()
    if bool((chances == 0).any()):  # too unlikely for the softmax to tell how much
        exact = logits.logsumexp(-1) - logits.gather(-1, following)[..., 0]
        nats = torch.where(chances == 0, exact, nats)
    losses = torch.where(shares != 0.0, nats * shares, 0.0).sum(dim=1)
    factors = (batch.scale * shares)[..., None]
    gradient.mul_(factors).scatter_add_(-1, following, -factors)
    return losses, gradient
