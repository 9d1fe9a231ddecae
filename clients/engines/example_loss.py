"""A weighted sum of example losses that keeps its gradient: for `torch.func`, in two passes."""

from __future__ import annotations

from typing import Any

import torch

from clients.engines.cross_entropy import mean_shares


class _SumOfLosses(torch.autograd.Function):
    """Forward makes the gradient too, for it has the softmax at hand; backward scales it."""

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
    """Return Σ weight × `fedsim.losses.example_losses`, a scalar; goes through `vmap` and `grad`.

    `F.cross_entropy` under `vmap` moves the vocabulary to the front and back again, which is two
    copies of the largest tensor that there is.

    Args:
        logits: (examples, length, vocabulary).
        tokens: (examples, length) int64.
        lengths: (examples,) int64.
        weights: (examples,); those of weight 0 have no influence.
    """
    following = tokens.roll(-1, dims=1)[..., None]
    shares = mean_shares(tokens, lengths, weights)
    total: torch.Tensor = _SumOfLosses.apply(logits, following, shares.to(logits.dtype))[0]  # type: ignore[no-untyped-call]
    return total
