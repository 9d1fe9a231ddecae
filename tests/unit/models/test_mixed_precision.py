"""Frozen weights are kept in bfloat16 where that changes no bit, and else as they are."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaMLP

from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.models.mixed_precision import in_precision
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.clipping import FlatClip
from fedsim.config import ModelConfig
from fedsim.language_model import network_digest
from tests.contracts.layer_samples import VOCABULARY, GivenUnits, opened, ragged_units

LORA = ModelConfig(lora_rank=2)
CLIP = FlatClip(l2_clip_norm=0.1)


def llama(*, tied: bool = True, published_in: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """A small network whose weights were published in a type, opened in float32."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=16, tie_word_embeddings=tied,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return rounded(LlamaForCausalLM(config), published_in)


def rounded(network: PreTrainedModel, published_in: torch.dtype) -> PreTrainedModel:
    """Return it with weights that the type holds, in float32."""
    for value in network.parameters():
        value.data = value.data.to(published_in).to(torch.float32)
    return network


def kept_in_bfloat16(model: TransformersModel) -> set[str]:
    """Return the ends of names of the weights that are."""
    names = dict(model.module.named_parameters())
    narrow = {name for name, value in names.items() if value.dtype == torch.bfloat16}
    return {name.removesuffix(".weight").rsplit(".", 1)[-1] for name in narrow}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "apart"])
def test_no_bit_changes(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of logits in both precisions, clipped sums, digests, or of how the network is printed."""
    wide, narrow = (opened(llama(tied=tied), LORA) for _ in range(2))
    digest, printed = network_digest(wide, wide.initial_parameters()), str(wide.module)
    mixed = [in_precision(narrow, "bfloat16")]
    monkeypatch.setattr("fedsim.clients.models.mixed_precision.narrow_frozen_", lambda _: None)
    mixed.append(in_precision(wide, "bfloat16"))
    assert {"base_layer", "down_proj", "embed_tokens"} <= kept_in_bfloat16(narrow)
    assert ("lm_head" in kept_in_bfloat16(narrow)) is not tied  # else it goes by the other name
    assert not kept_in_bfloat16(wide)
    assert network_digest(narrow, narrow.initial_parameters()) == digest
    assert str(narrow.module) == printed

    generator = torch.Generator().manual_seed(4)
    start = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator)
        for name, value in wide.initial_parameters().items()
    }
    text = torch.arange(24).view(2, 12)
    for left, right in ((narrow, wide), mixed):
        assert torch.equal(left.logits(start, text), right.logits(start, text))
    task = GivenUnits(narrow, ragged_units())
    for left, right in ((narrow, wide), mixed):
        engines = [materialised(cast(OpenModel, model)) for model in (left, right)]
        sums = [engine(task, start, task.keys, CLIP, 0) for engine in engines]
        assert all(torch.equal(*(each.values[name] for each in sums)) for name in start)


def test_what_is_saved_is_of_float32_and_the_network_goes_on(tmp_path: Path) -> None:
    """Merged into rounded weights, adapters would be lost in part."""
    wide, narrow = (opened(llama(), LORA) for _ in range(2))
    in_precision(narrow, "bfloat16")
    start = {name: value + 0.01 for name, value in wide.initial_parameters().items()}
    for model in (wide, narrow):
        model.save(start, tmp_path / "model")
        model.save_adapter(start, tmp_path / "adapter")
        files = {file.name: file.read_bytes() for file in tmp_path.rglob("*.safetensors")}
        if model is wide:
            expected = files
    assert files == expected
    assert len(files) == 2
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").dtype == torch.float32
    assert kept_in_bfloat16(narrow)


def test_numbers_that_bfloat16_does_not_hold_stay() -> None:
    """Of all weights, or of one layer's among others."""
    model = opened(llama(published_in=torch.float16), LORA)
    in_precision(model, "bfloat16")
    assert not kept_in_bfloat16(model)
    network = llama()
    for layer in network.model.layers:
        layer.mlp.up_proj.weight.data += 2.0**-12
    mended = opened(network, LORA)
    in_precision(mended, "bfloat16")
    assert "up_proj" not in kept_in_bfloat16(mended) > {"gate_proj", "down_proj"}


def test_what_is_trained_stays() -> None:
    """A whole weight, and that of a layer whose bias is trained, which rules know by its class."""
    model = opened(llama(), ModelConfig(trainable="layers.1.*q_proj|lm_head|embed"))
    in_precision(model, "bfloat16")
    kept = dict(model.module.named_parameters())
    assert kept["model.layers.1.self_attn.q_proj.weight"].dtype == torch.float32
    assert kept["model.layers.0.self_attn.q_proj.weight"].dtype == torch.bfloat16
    assert "embed_tokens" not in kept_in_bfloat16(model)
    whole = opened(llama(), ModelConfig())
    in_precision(whole, "bfloat16")
    assert not kept_in_bfloat16(whole)


class _ByHand(nn.Module):
    """A layer that reads another's weight, as some state space networks do."""

    def __init__(self, inner: nn.Module, adds: bool) -> None:
        super().__init__()
        self.inner, self.adds = inner, adds

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(hidden)
        weight = cast(LlamaMLP, self.inner).gate_proj.weight
        if self.adds:
            return output + weight.square().sum()
        with torch.autocast("cpu", enabled=False):
            return output + F.linear(hidden, weight).sum()


@pytest.mark.parametrize("adds", [True, False], ids=["rounds", "types differ"])
def test_a_network_that_reads_weights_by_hand_stays_as_it_is(adds: bool) -> None:
    network = llama()
    network.model.layers[0].mlp = _ByHand(network.model.layers[0].mlp, adds)
    model = opened(network, ModelConfig(lora_rank=2, lora_target_modules=("q_proj",)))
    before = {name: type(part) for name, part in model.module.named_modules()}
    in_precision(model, "bfloat16")
    assert not kept_in_bfloat16(model)
    assert {name: type(part) for name, part in model.module.named_modules()} == before
