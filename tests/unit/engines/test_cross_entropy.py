"""Losses and their gradient in closed form: chances too small for a float32, and norms."""

from __future__ import annotations

import pytest
import torch

from fedsim.clients.engines.cross_entropy import Batch, losses_and_gradient


@pytest.mark.parametrize("size", [1.0, 500.0])
def test_a_word_without_a_chance_has_the_loss_that_its_logit_says(size: float) -> None:
    torch.manual_seed(0)
    logits = size * torch.randn(3, 4, 50)
    following = torch.randint(50, (3, 4))
    losses, _ = losses_and_gradient(
        logits, Batch(following.roll(1, dims=1), torch.full((3, 4), 0.25))
    )
    chances = logits.softmax(dim=-1).gather(-1, following[..., None])
    assert bool((chances == 0).any()) == (size > 100)
    exact = -logits.double().log_softmax(dim=-1).gather(-1, following[..., None])
    torch.testing.assert_close(losses.double(), 0.25 * exact.sum(dim=(1, 2)), rtol=1e-5, atol=0.0)
