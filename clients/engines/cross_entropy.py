"""Example losses and their gradients, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedsim.clients.models.gpu_kernels import aligned_room


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of one or more sequences, with the weight of each prediction.

    Attributes:
        tokens: (rows, length) int64 ids, padded on the right.
        shares: (rows, length), the weight of the loss of predicting the next token; 0 if there
            is no token to predict.
        positions: (rows, length) int64, the position of each token in its sequence; None if each
            row has one sequence.
        streams: (rows,) int64, the dropout streams; None without dropout.
    """

    tokens: torch.Tensor
    shares: torch.Tensor
    positions: torch.Tensor | None = None
    streams: torch.Tensor | None = None


def losses_and_gradient(
    logits: torch.Tensor, batch: Batch, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Σ share × loss of each row, (rows,), and its gradient with respect to the logits.

    The gradient at a position is (softmax − one-hot of the next token) × share.

    Args:
        logits: (rows, length, vocabulary).
        batch: the rows.
        dtype: type of the gradient; by default the type of the logits.
    """
    following = batch.tokens.roll(-1, dims=1)[..., None]  # the last token's share is 0
    shares = batch.shares.to(logits.dtype)
    gradient = torch.softmax(logits, dim=-1)
    chances = gradient.gather(-1, following)[..., 0]
    nats = -chances.log()
    if bool((chances == 0).any()):  # the softmax underflowed: compute the loss from the logits
        exact = logits.logsumexp(-1) - logits.gather(-1, following)[..., 0]
        nats = torch.where(chances == 0, exact, nats)
    losses = torch.where(shares != 0.0, nats * shares, 0.0).sum(dim=1)
    gradient.scatter_(-1, following, chances[..., None] - 1.0)
    if dtype is None or not gradient.is_cuda:  # on a CPU the product would copy it
        return losses, gradient.mul_(shares[..., None]).to(dtype or gradient.dtype)
    return losses, torch.mul(gradient, shares[..., None], out=aligned_room(gradient, dtype))
