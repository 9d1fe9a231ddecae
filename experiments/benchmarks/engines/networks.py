"""Networks for the benchmarks: the built-in ones, and GPT-2 with random weights."""

from __future__ import annotations

from functools import lru_cache

from transformers import GPT2Config

from fedsim.clients.models.pretraining import random_start
from fedsim.clients.models.tokenizers import byte_pair_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig
from fedsim.language_model import LanguageModel
from fedsim.materials import load_model

_POSITIONS = 1024
_LORA_RANK = 32
# Radford et al. 2019, Table 2: width, layers, heads. Medium is the 350 M model.
_GPT2 = {"gpt2-small": (768, 12, 12), "gpt2-medium": (1024, 24, 16)}


@lru_cache(maxsize=1)
def network(name: str, sequence_length: int, device: str) -> LanguageModel:
    """Return an untrained model; times do not depend on what weights are.

    Args:
        name: a built-in model, or one of `gpt2-small`, `gpt2-medium`, with `-lora` for rank 32 on
            `c_attn` and the rest frozen. Nothing is downloaded.
        sequence_length: of the longest example, in tokens.
        device: in torch's spelling.
    """
    plain = name.removesuffix("-lora")
    if plain not in _GPT2:
        built_in = ModelConfig(name_or_path=name, pretraining_steps=0)
        return load_model(built_in, 0, sequence_length, device)
    width, layers, heads = _GPT2[plain]
    tokenizer = byte_pair_tokenizer(2000)  # any that fits: token ids are drawn, never spelt
    config = GPT2Config(
        n_positions=_POSITIONS,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return TransformersModel(
        random_start(config, seed=0),
        tokenizer,
        ModelConfig(name_or_path=name, lora_rank=_LORA_RANK if name != plain else 0),
        origin="Random weights.",
        sequence_length=sequence_length,
        device=device,
    )
