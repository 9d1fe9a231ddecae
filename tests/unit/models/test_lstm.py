"""The LSTM of McMahan et al. 2018, App. B, beside torch's own, and its words."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from fedsim.clients.models.mcmahan_lstm import (
    McMahanLstmConfig,
    McMahanLstmForCausalLM,
    NormalisedRows,
    PlainLstm,
    inverse_norms,
    load,
    unit_rows,
)
from fedsim.clients.models.tokenizers import word_tokenizer
from fedsim.config import ModelConfig

Rows = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def network() -> McMahanLstmForCausalLM:
    torch.manual_seed(0)
    config = McMahanLstmConfig(vocab_size=50, embedding_size=6, hidden_size=8)
    return McMahanLstmForCausalLM(config)


def test_the_plain_lstm_is_the_lstm() -> None:
    torch.manual_seed(0)
    ours, theirs = PlainLstm(5, 7), nn.LSTM(5, 7, batch_first=True)
    # Ours: write, forget, read, candidate. Torch's: write, forget, candidate, read.
    order = torch.arange(28).reshape(4, 7)[[0, 1, 3, 2]].flatten()
    theirs.load_state_dict(
        {
            "weight_ih_l0": ours.input_to_gates.weight[order],
            "weight_hh_l0": ours.hidden_to_gates.weight[order],
            "bias_ih_l0": ours.input_to_gates.bias[order],
            "bias_hh_l0": torch.zeros(28),
        }
    )
    inputs = torch.randn(3, 11, 5)
    torch.testing.assert_close(ours(inputs), theirs(inputs)[0], rtol=0, atol=1e-6)


def test_a_row_of_zeros_gives_finite_logits_and_gradients() -> None:
    network = McMahanLstmForCausalLM(
        McMahanLstmConfig(vocab_size=9, embedding_size=4, hidden_size=4)
    )
    with torch.no_grad():
        network.embedding.weight[2] = 0.0
    network(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    gradient = network.embedding.weight.grad
    assert gradient is not None and bool(torch.isfinite(gradient).all())


def test_words_outside_the_dictionary_are_unknown() -> None:
    model = load(ModelConfig(name_or_path="mcmahan-lstm", pretraining_steps=0))
    (ids,) = model.encode(["The KING's bicycle, o’er!"])
    assert model.unknown_token_id == 0
    assert model.tokenizer.convert_ids_to_tokens(ids) == [
        *("<s>", "the", "king's", "<unk>", ",", "o'er", "!", "</s>")
    ]


def test_the_dictionary_holds_the_most_frequent_words() -> None:
    small, large = word_tokenizer(100), word_tokenizer(10_000)
    first = list(range(100))
    assert (len(small), len(large)) == (100, 10_000)
    assert small.convert_ids_to_tokens(first) == large.convert_ids_to_tokens(first)
    assert {"the", "and", "i", ","} <= set(small.get_vocab())


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.0])
def test_unit_rows_are_torchs_normalize_to_the_gradient(scale: float) -> None:
    """Also for rows too short to have a direction."""
    generator = torch.Generator().manual_seed(0)
    table = scale * torch.randn(5, 4, generator=generator, dtype=torch.float64)
    table[0] = 0.0
    weight = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    ways: list[Rows] = [unit_rows, partial(normalize, dim=-1)]
    gradients = []
    for rows in ways:
        leaf = table.clone().requires_grad_()
        gradients.append(torch.autograd.grad((rows(leaf) * weight).sum(), leaf))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("in_cache", [6, 18, 2**18], ids=["row by row", "three rows", "all rows"])
def test_gradients_of_rows_are_those_of_normalize_short_ones_too(
    in_cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of length 2, nearly 1e-12, half of it, and 0."""
    monkeypatch.setattr("fedsim.clients.models.mcmahan_lstm._IN_CACHE", in_cache)
    rows = normalize(torch.randn(4, 6, dtype=torch.float64))
    weight = (rows * torch.tensor([2.0, 0.99e-12, 0.5e-12, 0.0])[:, None]).requires_grad_()
    above = torch.randn(4, 6, dtype=torch.float64)
    (expected,) = torch.autograd.grad(normalize(weight), weight, above)
    used = unit_rows(weight)
    (own,) = torch.autograd.grad(used, weight, above)
    torch.testing.assert_close(own, expected)
    chain = NormalisedRows(weight.detach().clone(), inverse_norms(weight.detach()))
    turned = above.clone()
    chain(turned)
    torch.testing.assert_close(turned, expected)
