"""Example losses and their gradients, in closed form and for `torch.func`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from fedsim.evaluation.losses import predicted_mask, token_ids


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of one or more sequences, with the weight of each prediction.

    Attributes:
        tokens: (rows, length) int64 ids, padded on the right.
        shares: (rows, length), the weight of the loss of predicting the token after this one; 0
            where there is none to predict.
        positions: (rows, length) int64 of tokens in their sequences, where rows have several; or
            None.
        streams: (rows,) int64 for dropout, or None.
        scale: factor of the gradient, not of the losses.
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
    if bool((chances == 0).any()):  # the softmax underflowed: the loss comes from the logits
        exact = logits.logsumexp(-1) - logits.gather(-1, following)[..., 0]
        nats = torch.where(chances == 0, exact, nats)
    losses = torch.where(shares != 0.0, nats * shares, 0.0).sum(dim=1)
    factors = (batch.scale * shares)[..., None]
    gradient.mul_(factors).scatter_add_(-1, following, -factors)
    return losses, gradient


class _SumOfLosses(torch.autograd.Function):
    """Weighted loss whose forward pass also makes the gradient, from the same softmax."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        logits: torch.Tensor, following: torch.Tensor, shares: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return Σ share × negative log-likelihood, a scalar, and its gradient."""
        scores = torch.log_softmax(logits, dim=-1)
        total = -(scores.gather(-1, following)[..., 0] * shares).sum()
        gradient = scores.exp_().mul_(shares[..., None])
        return total, gradient.scatter_add_(-1, following, -shares[..., None])

    @staticmethod
    def setup_context(
        ctx: Any,  # noqa: ANN401 (torch names no type with these attributes)
        inputs: tuple[torch.Tensor, ...],
        output: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """Keep the gradient."""
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        d_total: torch.Tensor,
        *_unused: torch.Tensor,
    ) -> tuple[torch.Tensor, None, None]:
        """Return the gradient of the logits."""
        (gradient,) = ctx.saved_tensors
        return gradient * d_total, None, None


def weighted_loss(
    logits: torch.Tensor, tokens: torch.Tensor, lengths: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return Σ weight × `fedsim.evaluation.losses.example_losses`, a scalar.

    It goes through `vmap` and `grad`.

    `F.cross_entropy` under `vmap` moves the vocabulary to the front and back again, which is two
    copies of the largest tensor that there is.

    Args:
        logits: (examples, length, vocabulary).
        tokens: (examples, length) int64.
        lengths: (examples,) int64.
        weights: (examples,); those of weight 0 have no influence.
    """
    following = token_ids(tokens).roll(-1, dims=1)[..., None]
    shares = mean_shares(tokens, lengths, weights)
    total: torch.Tensor = _SumOfLosses.apply(logits, following, shares.to(logits.dtype))[0]  # type: ignore[no-untyped-call]
    return total
