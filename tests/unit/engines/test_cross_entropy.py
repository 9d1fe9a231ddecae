"""Losses and their gradient where the gradient takes the memory of the logits."""

from __future__ import annotations

import pytest
import torch

from fedsim.clients.engines.cross_entropy import Batch, losses_and_gradient


@pytest.mark.parametrize("size", [1.0, 500.0])  # with the larger one, chances are 0 in float32
def test_in_the_memory_of_the_logits_it_is_the_same_to_the_bit(size: float) -> None:
    torch.manual_seed(0)
    logits = size * torch.randn(3, 4, 50)
    tokens = torch.randint(50, (3, 4))
    batch = Batch(tokens, torch.full((3, 4), 0.25))
    losses, gradient = losses_and_gradient(logits, batch)
    taken = logits.clone()
    assert bool((logits.softmax(dim=-1) == 0).any()) == (size > 100)
    losses_there, gradient_there = losses_and_gradient(taken, batch, lambda: logits)
    assert gradient_there.data_ptr() == taken.data_ptr() != logits.data_ptr()
    assert torch.equal(losses_there, losses)
    assert torch.equal(gradient_there, gradient)
    exact = -logits.double().log_softmax(dim=-1)
    exact = exact.gather(-1, tokens.roll(-1, dims=1)[..., None])[..., 0].sum(dim=1) * 0.25
    torch.testing.assert_close(losses.double(), exact, rtol=1e-5, atol=0.0)
