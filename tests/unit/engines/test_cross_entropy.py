"""Losses and their gradient in closed form: chances too small for a float32, and norms."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch

from fedsim.clients.engines.cross_entropy import Batch, losses_and_gradient
from fedsim.clients.engines.per_example.capture import OpenModel, find_layers, run
from fedsim.clients.engines.per_example.gradient_terms import Product, Term
from tests.contracts.layer_samples import VOCABULARY, network


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


@pytest.mark.parametrize(
    ("name", "count"),
    [("gpt2 tied", 1), ("gpt2 untied", 1), ("llama", 1), ("lstm", 1), ("gemma2", 0)],
)
def test_what_scores_words_knows_the_norms_of_its_gradient_without_reading_it(
    name: str, count: int
) -> None:
    """At least the norms, at most √2 times them; not where logits are changed after the scores."""
    model, parameters = network(name, torch.float32)
    open_model = cast(OpenModel, model)
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (3, 6))
    shares = torch.rand(3, 6).index_fill(1, torch.tensor([5]), 0.0)
    terms: list[Product] = []

    def take(_: str, term: Term) -> None:
        if isinstance(term, Product):
            terms.append(term)

    run(open_model, find_layers(open_model), parameters, Batch(tokens, shares), take)
    known = [(term.left, term.most_left) for term in terms if term.most_left is not None]
    assert len(known) == count < len(terms)
    for gradient, most in known:
        assert gradient.shape[-1] == VOCABULARY
        norms = torch.linalg.vector_norm(gradient, dim=-1)
        assert bool((norms <= 1.000001 * most).all())
        assert bool((most <= 1.000001 * math.sqrt(2.0) * norms).all())
        assert not most[:, -1].any()  # nothing is predicted there


def test_likely_words_are_taken_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number, a position's gradient has the same bits."""
    torch.manual_seed(0)
    following = torch.randint(50, (5, 8))
    logits = torch.randn(5, 8, 50)
    logits.scatter_add_(-1, following[..., None], torch.full((5, 8, 1), 7.0))
    batch = Batch(following.roll(1, dims=1), torch.full((5, 8), 0.25))
    assert int((logits.softmax(-1).gather(-1, following[..., None]) > 0.5).sum()) > 20
    _, at_once = losses_and_gradient(logits, batch)
    monkeypatch.setattr("fedsim.clients.engines.cross_entropy._AT_ONCE", 3)
    _, in_parts = losses_and_gradient(logits, batch)
    assert torch.equal(at_once, in_parts)
