"""Small random networks of any architecture of transformers."""

from __future__ import annotations

import re
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

WORDS, LENGTH = 64, 40
MOST_PARAMETERS = 3_000_000

SIZES = {
    r".*vocab_size.*|.*(position|seq_len|sequence_len|n_ctx|context_len|d_ssm).*": WORDS,
    r"pad_token_id|num_kv_shared_layers": 0,
    r"(bos|cls|decoder_start)_token_id|first_k_dense_replace|num_dense_layers": 1,
    r"(n_|topk_|num_expert_|mamba_n_)groups?": 1,
    r"(eos|sep)_token_id|(num_|n_)?(hidden_|encoder_|decoder_)?(layers?|blocks)": 2,
    r".*(kv_heads|head_kv|(key|value)_heads)|zero_expert_num|.*(per_tok(en)?|top_?k)|moe_k": 2,
    r"mask_token_id": 3,
    r"mamba_(d_head|head_?dim)|qk_head_dim": 16,
    r".*(head_dim|head_size|d_head|kv_channels|dim_head|rotary_dim)": 8,
    r".*(window|chunk)(_size|_len.*)?|block_size|.*(moe|expert|shared).*(size|dim)": 8,
    r".*((lora|adapter|laurel)_rank|_per_layer_input|state_size|d_state|index_topk)": 8,
    r".*_heads?|(num|n)_(local_|routed_)?experts|moe_num_experts": 4,
    r".*(intermediate_size|ffn_dim|ffn_hidden_size|feed_forward_size|d_inner|inner_dim).*": 40,
    r"n_inner|dff|d_ff|dim_ff|block_ff_dim": 40,
    r"hidden_size|d_model|n_embd|dim|d?_?emb.*(size|dim)|word_embed_proj_dim|lru_width": 32,
    r"(conv|block|backbone)_dim": 32,
}
"""The most of a setting whose whole name is like this; the first that fits counts."""

MISSING = {
    "head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "num_key_value_heads": 4,
}
"""Settings of some that are None by default, which then cannot be built."""

OTHERS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 1e4},
        "ffn_config": {"ffn_hidden_size": 16, "moe_num_experts": 4, "hidden_size": 32},
    },
    "falcon_h1": {"mamba_d_head": 16},
    "gemma3n_text": {"intermediate_size": 40},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"head_dim": 16},
    "recurrent_gemma": {"num_hidden_layers": 3},  # the third has attention
    "reformer": {"axial_pos_embds": False},
    "xlm": {"causal": True},
    "zamba2": {
        "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid"] * 2,
        "attention_head_dim": 16,
        "attention_hidden_size": 64,
    },
}
"""What a small network of a type needs besides."""


def small_config(kind: type[PretrainedConfig], **given: object) -> PretrainedConfig:
    """Return its default settings, shrunk: with a layer of each kind, and two at least."""
    default = kind()
    values, small = default.to_dict(), dict[str, Any]()
    for name, value in values.items():
        inner = vars(default).get(name)
        if isinstance(inner, PretrainedConfig):
            small[name] = small_config(type(inner)).to_dict()
        elif value is None and name in MISSING:
            small[name] = MISSING[name]
        elif type(value) is int:
            sizes = (size for like, size in SIZES.items() if re.fullmatch(like, name))
            small[name] = min(value, next(sizes, value))
    if values.get("num_key_value_heads", 0) == values.get("num_attention_heads"):
        small["num_key_value_heads"] = small["num_attention_heads"]
    depth = next((n for n in small if re.fullmatch(r"(num_|n_)(hidden_)?layers?", n)), "")
    lists = {n: v for n, v in values.items() if isinstance(v, list) and len(v) == values.get(depth)}
    if lists:
        kinds = [repr(layer) for layer in zip(*lists.values(), strict=True)]
        places = sorted({*map(kinds.index, kinds)})[:4]
        places = places if len(places) > 1 else [0, 1]
        small |= {n: [v[place] for place in places] for n, v in lists.items()}
        small[depth] = len(places)
    return kind(**small | OTHERS.get(kind.model_type, {}) | given)


def small_network(name: str, **given: object) -> PreTrainedModel:
    """Return a random network that computes logits, without zeros and ties."""
    torch.manual_seed(3)
    options: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
    config = small_config(CONFIG_MAPPING[name], **given)
    module: PreTrainedModel = AutoModelForCausalLM.from_config(config, **options)  # type: ignore[no-untyped-call]
    module.train(False)
    if (size := sum(value.numel() for value in module.parameters())) > MOST_PARAMETERS:
        raise ValueError(f"{size / 1e6:.1f} million parameters where it is small")
    with torch.no_grad():
        for value in module.parameters():
            value.add_(0.05 * torch.randn(value.shape))
        module(torch.arange(LENGTH)[None] % WORDS, use_cache=False)
    return module
