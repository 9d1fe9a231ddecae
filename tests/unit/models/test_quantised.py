"""A base in 8 or 4 bits computes what the network with the rounded weights computes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fedsim.clients.models.quantised import QuantisedLinear
from fedsim.config import ModelConfig, Quantisation
from fedsim.errors import ConfigError
from tests.contracts.layer_samples import VOCABULARY, opened
from tests.unit.models.test_mixed_precision import llama

# The quantiles of a normal distribution in Dettmers et al. 2023 (arXiv:2305.14314), Appendix E.
NF4 = [-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0]
NF4 += [0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0]
# Half of the largest gap between two codes.
LARGEST_ERROR = {"nf4": 0.152, "int8": 0.5 / 127 + 1e-6}


def gpt2() -> PreTrainedModel:
    torch.manual_seed(3)
    sizes = GPT2Config(vocab_size=VOCABULARY, n_embd=24, n_layer=2, n_head=2, n_positions=16)
    sizes._attn_implementation = "eager"
    return GPT2LMHeadModel(sizes)


def unpacked(layer: QuantisedLinear) -> torch.Tensor:
    """Read the packed codes by hand: a code times the scale of its block of 64 numbers."""
    packed = layer.packed.flatten()
    if layer.kind == "nf4":
        values = torch.tensor(NF4)[torch.stack([packed >> 4, packed & 15], dim=1).long()].flatten()
    else:
        values = (packed.float() - 128).clamp(min=-127) / 127  # -1 twice
    size = layer.shape.numel()
    return (values[:size] * layer.scales.repeat_interleave(64)[:size]).view(layer.shape)


@pytest.mark.parametrize("kind", ["int8", "nf4"])
@pytest.mark.parametrize("make", [gpt2, llama])
def test_logits_and_gradients_are_those_of_weights_unpacked_by_hand(
    make: Callable[[], PreTrainedModel], kind: Quantisation
) -> None:
    quantised = opened(make(), ModelConfig(lora_rank=2, quantisation=kind, merged=False))
    by_hand, exact = (opened(make(), ModelConfig(lora_rank=2)) for _ in range(2))
    plain, layers = dict(by_hand.module.named_modules()), 0
    for name, layer in quantised.module.named_modules():
        if isinstance(layer, QuantisedLinear):
            layers += 1
            codes = 1 if kind == "int8" else 2
            assert layer.packed.nbytes == -(-layer.shape.numel() // codes)
            weight, values = cast(nn.Linear, plain[name]).weight, unpacked(layer)
            values = values.T if isinstance(plain[name], Conv1D) else values
            furthest = LARGEST_ERROR[kind] * weight.abs().max()
            assert (values - weight).abs().max() <= furthest
            weight.data = values
    assert layers == (8 if make is gpt2 else 14)
    generator = torch.Generator().manual_seed(4)
    start = {
        name: value + 0.1 * torch.randn(value.shape, generator=generator)
        for name, value in exact.initial_parameters().items()
    }
    text = torch.arange(24).view(2, 12)
    found = []
    for model in (quantised, by_hand, exact):
        leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
        logits = model.logits(leaves, text)
        found.append([logits, *torch.autograd.grad(logits.logsumexp(-1).sum(), [*leaves.values()])])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert (found[0][0] - found[2][0]).abs().max() > 1e-4  # something was rounded


def test_what_cannot_be_quantised_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(lora_rank=2, quantisation="nf4", merged=False)
    only_words = config.model_copy(update={"lora_target_modules": ("wte",)})
    network = cast(GPT2LMHeadModel, gpt2())
    network.transformer.h = nn.ModuleList()
    with pytest.raises(ConfigError, match="has no linear layers besides its output layer"):
        opened(network, only_words)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedsim-dp\[quantisation\]'"):
        opened(gpt2(), config)
