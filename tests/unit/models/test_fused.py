"""Fused kernels: GPT-2's activation, and attention."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel
from transformers.activations import NewGELUActivation

from fedsim import materials
from fedsim.clients.engine_choice import _vmap_refused
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.packing import ROW_TOKENS, row_tokens
from fedsim.clients.models.gpu_kernels import (
    AlignedLinear,
    align_words,
    aligned,
    aligned_room,
    readable,
)
from fedsim.clients.models.tokenizers import word_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.clients.models.transformers_model import _fuse_activations as fuse_activations
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError
from tests.contracts.layer_samples import NETWORKS, VOCABULARY, small_model


def test_it_computes_what_it_computed_before_without_the_slow_module() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=30, n_positions=8, n_embd=8, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    )
    before = GPT2LMHeadModel(config).eval().double()  # type: ignore[no-untyped-call]
    after = copy.deepcopy(before)
    fuse_activations(after)
    tokens = torch.arange(16).view(2, 8)
    torch.testing.assert_close(after(tokens).logits, before(tokens).logits, rtol=1e-12, atol=1e-12)
    kinds = [type(part) for part in after.modules()]
    assert NewGELUActivation not in kinds
    assert kinds.count(nn.GELU) == 2


# Attention weights that are capped, a recurrence, and older forms of attention.
REFUSED = {"gemma2", "lstm", "gpt-neo", "falcon"}


def of(module: PreTrainedModel, config: ModelConfig) -> TransformersModel:
    words = word_tokenizer(VOCABULARY)
    return TransformersModel(module, words, config, origin="", sequence_length=12)


@pytest.mark.parametrize("name", [name for name in NETWORKS if " " not in name])
def test_fused_attention_is_the_same_attention_or_refused(name: str) -> None:
    make, config = NETWORKS[name]
    torch.manual_seed(3)
    module = make()
    fused = config.model_copy(update={"attention": "sdpa"})
    if name in REFUSED:
        with pytest.raises(ConfigError, match=r"model\.attention = 'sdpa': .* leave this key out"):
            of(module, fused)
        return
    plain, other = of(copy.deepcopy(module), config), of(module, fused)
    for model in (plain, other):  # whatever the network came with
        assert cast(PreTrainedModel, model.module).config._attn_implementation == model.attention
    start = {
        name: value + 0.1 * torch.randn_like(value)
        for name, value in plain.initial_parameters().items()
    }
    tokens = torch.arange(24).view(2, 12) % VOCABULARY
    expected = plain.logits(start, tokens)
    difference = float((other.logits(start, tokens) - expected).abs().max())
    assert difference <= 1e-5 * float(expected.abs().max())
    assert "sdpa" not in cast(PreTrainedModel, other.module).config.to_json_string()  # as saved


def test_a_loader_that_passes_over_the_choice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SimpleNamespace()
    monkeypatch.setattr(materials, "resolve", lambda *_: lambda *_, **__: model)
    materials.load_model(ModelConfig())
    with pytest.raises(ConfigError, match=r"model\.attention = 'sdpa': the loader of .*'tiny-gpt'"):
        materials.load_model(ModelConfig(attention="sdpa"))


def test_with_fused_attention_each_sequence_has_a_row_and_no_engine_vectorises() -> None:
    """A mask for several sequences in a row would give a whole pass on a GPU another kernel."""
    for attention, tokens in (("eager", ROW_TOKENS), ("sdpa", 0)):
        model = small_model(ModelConfig(attention=attention))  # type: ignore[arg-type]
        parameters = model.initial_parameters()
        assert row_tokens(cast(OpenModel, model), parameters) == tokens
        refused = _vmap_refused(model)
        assert refused == (None if attention == "eager" else "attention sdpa")


@pytest.mark.parametrize("size", [30, 32, 49])
def test_words_are_scored_as_before_beside_some_more(size: int) -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=size, n_embd=8, n_layer=1, n_head=2, bos_token_id=1)
    network = GPT2LMHeadModel(config)
    printed = str(network)
    align_words(network)
    assert str(network) == printed  # by which a run's seed of coins and noise is made
    words = network.lm_head
    assert type(words) is AlignedLinear
    assert words.weight is network.transformer.wte.weight
    hidden = torch.randn(2, 3, 8, requires_grad=True)
    scores = words.padded(hidden, torch.float32)
    assert scores.shape == (2, 3, size)
    torch.testing.assert_close(scores, nn.functional.linear(hidden, words.weight))
    (gradient,) = torch.autograd.grad(scores.square().sum(), words.weight)
    plain = nn.functional.linear(hidden, words.weight).square().sum()
    torch.testing.assert_close(gradient, torch.autograd.grad(plain, words.weight)[0])


def test_sides_that_tensor_cores_cannot_read_are_copied() -> None:
    wide = torch.randn(4, 16, 49)
    assert aligned(wide.mT).equal(wide.mT)
    assert aligned(wide.mT).stride()[-2:] == (16, 1)
    even = torch.randn(4, 16, 48)
    assert aligned(even.mT).data_ptr() == even.data_ptr()


@pytest.mark.parametrize("size", [48, 49, 55])
def test_room_that_is_made_for_them_is_read_as_it_is_by_units_and_turned(size: int) -> None:
    """As the gradient by the scores is: rows of all units in one tensor, a side of a product."""
    room = aligned_room(torch.empty(6, 16, size), torch.bfloat16)
    assert room.shape == (6, 16, size)
    assert room.dtype == torch.bfloat16
    side = room.reshape(2, -1, size).mT
    assert aligned(side).data_ptr() == side.data_ptr() == room.data_ptr()


@pytest.mark.parametrize("size", [5, 48, 49, 55])
def test_rows_of_a_side_are_read_in_eights_and_the_rest(size: int) -> None:
    turned, plain = aligned_room(torch.empty(2, 16, size), torch.float32).mT, torch.empty(size, 16)
    parts = [[*range(size)][rows] for rows in readable(turned)]
    assert [row for part in parts for row in part] == [*range(size)]
    assert all(len(part) % 8 == 0 or len(part) < 8 for part in parts)
    assert readable(plain) == [slice(size)]
