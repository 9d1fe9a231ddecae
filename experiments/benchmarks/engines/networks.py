"""Networks for the benchmarks: the built-in ones, and GPT-2 with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache

import torch
from transformers import GPT2Config, LlamaConfig, PreTrainedConfig

from fedsim.clients.models.pretraining import random_start
from fedsim.clients.models.tokenizers import byte_pair_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import Attention, ModelConfig
from fedsim.experiments.benchmarks.server.bench_server import MODELS
from fedsim.language_model import LanguageModel
from fedsim.materials import load_model

LORA_RANK = 32
# Radford et al. 2019, Table 2: width, layers, heads. Medium is the 350 M model.
CONFIGS: Mapping[str, PreTrainedConfig] = {
    "gpt2-small": GPT2Config(n_embd=768, n_layer=12, n_head=12),
    "gpt2-medium": MODELS["gpt2-medium, 350M"],
    "smollm2-135m": MODELS["SmolLM2-135M"],
    "llama-8b": LlamaConfig(  # Grattafiori et al. 2024 (arXiv:2407.21783), Table 3
        vocab_size=128_256,
        hidden_size=4_096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
    ),
    "llama-tiny": LlamaConfig(
        vocab_size=2_000,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
    ),
}


@lru_cache(maxsize=1)
def network(
    name: str, sequence_length: int, device: str, attention: Attention = "eager"
) -> LanguageModel:
    """Return an untrained model; times do not depend on the values of weights.

    Args:
        name: a built-in model or one of `CONFIGS`. The suffix `-lora` adds adapters of rank 32 to
            peft's default layers and freezes the rest; `-nf4-lora` also holds the base in 4 bits.
            Nothing is downloaded.
        sequence_length: maximum length of an example, in tokens.
        device: device, in torch's notation.
        attention: attention kind, see `ModelConfig`.
    """
    plain = name.removesuffix("-lora").removesuffix("-nf4")
    if plain not in CONFIGS:
        built_in = ModelConfig(name_or_path=name, pretraining_steps=0, attention=attention)
        return load_model(built_in, 0, sequence_length, device)
    tokenizer = byte_pair_tokenizer(2000)  # any tokenizer: token ids are drawn at random
    with torch.device(device if plain == "llama-8b" else "cpu"):  # seconds on a GPU
        module = random_start(deepcopy(CONFIGS[plain]), seed=0)
    return TransformersModel(
        module,
        tokenizer,
        ModelConfig(
            name_or_path=name,
            lora_rank=LORA_RANK if name != plain else 0,
            attention=attention,
            quantisation="nf4" if "-nf4" in name else None,
            merged="-nf4" not in name,
        ),
        origin="Random weights.",
        sequence_length=sequence_length,
        device=device,
    )
