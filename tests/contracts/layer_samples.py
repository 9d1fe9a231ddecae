"""Small random networks of every kind that has layer rules, and ragged units for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    NemotronConfig,
    NemotronForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.models.mcmahan_lstm import McMahanLstmConfig, McMahanLstmForCausalLM
from fedsim.clients.models.tiny_gpt import VOCABULARY_SIZE
from fedsim.clients.models.tokenizers import byte_pair_tokenizer, word_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.clipping import Clip
from fedsim.config import ModelConfig
from fedsim.estimators import WeightedSum
from fedsim.execution import Engine, Keys, Unit, Update
from fedsim.tensors import Tensors, l2_norm

VOCABULARY = 60

_LLAMA_LIKE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 12,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "attn_implementation": "eager",
    "pad_token_id": None,
}
_GEMMA: dict[str, Any] = _LLAMA_LIKE | {"head_dim": 6}
_ONE_LAYER: dict[str, Any] = {"num_hidden_layers": 1}
_COHERE: dict[str, Any] = _LLAMA_LIKE | _ONE_LAYER | {"bos_token_id": 1, "eos_token_id": 2}
_SPARSE: dict[str, Any] = (
    _LLAMA_LIKE | _ONE_LAYER | {"num_experts_per_tok": 2, "experts_implementation": "eager"}
)
_QWEN_EXPERTS: dict[str, Any] = _SPARSE | {"num_experts": 5, "moe_intermediate_size": 8}


def gpt2(**sizes: Any) -> PreTrainedModel:  # noqa: ANN401
    """A small GPT-2 without dropout."""
    small = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 2}
    config = GPT2Config(
        **(small | sizes), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return GPT2LMHeadModel(config)


def _gpt_neo(positions: int = 16) -> PreTrainedModel:
    config = GPTNeoConfig(
        vocab_size=VOCABULARY, max_position_embeddings=positions, hidden_size=12, num_layers=2,
        num_heads=2, attention_types=[[["global", "local"], 1]], window_size=4,
        resid_dropout=0.0, embed_dropout=0.0, attention_dropout=0.0, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return GPTNeoForCausalLM(config)


def _gemma() -> PreTrainedModel:
    return GemmaForCausalLM(GemmaConfig(**_GEMMA | _ONE_LAYER))


def _gemma2() -> PreTrainedModel:
    caps: dict[str, Any] = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}
    return Gemma2ForCausalLM(Gemma2Config(**_GEMMA | _ONE_LAYER, **caps))


def _gemma3() -> PreTrainedModel:
    layers = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(**_GEMMA, sliding_window=4, layer_types=layers))


def _opt() -> PreTrainedModel:
    config = OPTConfig(
        vocab_size=VOCABULARY, hidden_size=12, ffn_dim=20, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, word_embed_proj_dim=8, dropout=0.0,
        bos_token_id=1, eos_token_id=2, pad_token_id=None,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return OPTForCausalLM(config)


def _cohere() -> PreTrainedModel:
    return CohereForCausalLM(CohereConfig(**_COHERE))


def _cohere2() -> PreTrainedModel:
    config = Cohere2Config(**_COHERE, sliding_window=4, layer_types=["sliding_attention"])
    return Cohere2ForCausalLM(config)


def _falcon() -> PreTrainedModel:
    sizes = {name: _LLAMA_LIKE[name] for name in ("vocab_size", "hidden_size", "pad_token_id")}
    config = FalconConfig(**sizes, **_ONE_LAYER, num_attention_heads=2, bias=True)
    config._attn_implementation = "eager"
    return FalconForCausalLM(config)


def _nemotron() -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
    config = NemotronConfig(**_LLAMA_LIKE | _ONE_LAYER, rope_parameters=rope)
    return NemotronForCausalLM(config)


def _mixtral() -> PreTrainedModel:
    # The routers' logits are asked for: transformers would make a loss of them beside its own.
    settings: dict[str, Any] = {"num_local_experts": 4, "output_router_logits": True}
    return MixtralForCausalLM(MixtralConfig(**_SPARSE, **settings))


def _qwen2_moe() -> PreTrainedModel:
    config = Qwen2MoeConfig(**_QWEN_EXPERTS, shared_expert_intermediate_size=16)
    return Qwen2MoeForCausalLM(config)


def _qwen3_moe() -> PreTrainedModel:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**_QWEN_EXPERTS, norm_topk_prob=True))


def _lstm(words: int = VOCABULARY) -> PreTrainedModel:
    config = McMahanLstmConfig(vocab_size=words, embedding_size=6, hidden_size=8)
    return McMahanLstmForCausalLM(config)


_Make = Callable[[], PreTrainedModel]
NETWORKS: dict[str, tuple[_Make, ModelConfig]] = {
    "gpt2 tied": (gpt2, ModelConfig()),
    "gpt2 untied": (lambda: gpt2(tie_word_embeddings=False), ModelConfig()),
    "gpt2 lora": (gpt2, ModelConfig(lora_rank=2)),
    "gpt2 norms and biases": (gpt2, ModelConfig(trainable=r"ln_|bias")),
    "gpt2 tied table": (gpt2, ModelConfig(trainable="wte")),
    "gpt2 positions": (gpt2, ModelConfig(trainable="wpe")),
    # Long enough for several sequences in a row; those above are not.
    "gpt2 in rows": (lambda: gpt2(n_positions=64), ModelConfig()),
    "gpt-neo": (_gpt_neo, ModelConfig()),
    "gpt-neo in rows": (lambda: _gpt_neo(positions=64), ModelConfig()),
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**_LLAMA_LIKE)), ModelConfig()),
    "llama lora": (lambda: LlamaForCausalLM(LlamaConfig(**_LLAMA_LIKE)), ModelConfig(lora_rank=2)),
    "qwen2": (lambda: Qwen2ForCausalLM(Qwen2Config(**_LLAMA_LIKE)), ModelConfig()),
    "qwen3": (
        lambda: Qwen3ForCausalLM(Qwen3Config(**_LLAMA_LIKE, head_dim=6, tie_word_embeddings=True)),
        ModelConfig(),
    ),
    "gemma": (_gemma, ModelConfig()),
    "gemma lora": (_gemma, ModelConfig(lora_rank=2)),
    "gemma2": (_gemma2, ModelConfig()),
    "gemma3": (_gemma3, ModelConfig()),
    "opt": (_opt, ModelConfig()),
    "cohere": (_cohere, ModelConfig()),
    "cohere2": (_cohere2, ModelConfig()),
    "falcon": (_falcon, ModelConfig()),
    "nemotron": (_nemotron, ModelConfig()),
    "lstm": (_lstm, ModelConfig()),
    "lstm recurrence": (_lstm, ModelConfig(trainable="hidden_to_gates")),
    "lstm embedding": (_lstm, ModelConfig(trainable=r"^embedding")),
}
# Mixtures of experts: their layers have no rules.
EXPERTS: dict[str, tuple[_Make, ModelConfig]] = {
    name: (make, ModelConfig())
    for name, make in (("mixtral", _mixtral), ("qwen2-moe", _qwen2_moe), ("qwen3-moe", _qwen3_moe))
}

# Their norms or attention compute in float32 whatever the parameters are, so that the size of a
# batch changes the last digits of that.
ROUNDS_INSIDE = {name for name in NETWORKS if not name.startswith(("gpt2", "lstm"))}


def network(name: str, dtype: torch.dtype) -> tuple[TransformersModel, dict[str, torch.Tensor]]:
    """Return a model that all share, and parameters of one's own of which none is special.

    There is no zero bias and no unit weight.
    """
    model, parameters = _network(name, dtype)
    return model, {key: value.clone() for key, value in parameters.items()}


@cache
def _network(name: str, dtype: torch.dtype) -> tuple[TransformersModel, dict[str, torch.Tensor]]:
    make, config = (NETWORKS | EXPERTS)[name]
    torch.manual_seed(3)
    model = opened(make(), config)
    model.module.to(dtype)
    parameters = model.initial_parameters()
    return model, {
        k: v.to(dtype) + 0.1 * torch.randn_like(v, dtype=dtype) for k, v in parameters.items()
    }


def opened(
    module: PreTrainedModel,
    config: ModelConfig | None = None,
    length: int = 12,
    device: str = "cpu",
) -> TransformersModel:
    """Any network of transformers as a language model of as many made-up words as it has."""
    return TransformersModel(
        module,
        word_tokenizer(module.config.vocab_size),
        config or ModelConfig(),
        origin="",
        sequence_length=length,
        device=device,
    )


def small_model(config: ModelConfig, device: str = "cpu") -> TransformersModel:
    """Return a narrow tiny-gpt or mcmahan-lstm, for the ids of tiny-gpt's tokenizer."""
    torch.manual_seed(3)
    words = byte_pair_tokenizer(VOCABULARY_SIZE)
    lstm = config.name_or_path == "mcmahan-lstm"
    module = _lstm(len(words)) if lstm else gpt2(n_positions=64, vocab_size=len(words))
    return TransformersModel(module, words, config, origin="", device=device)


def ragged_units(seed: int = 0) -> list[Unit]:
    """Return 11 units of 0 to 4 examples of 1 to 12 tokens, some padded for no reason."""
    rng = np.random.default_rng(seed)
    units = []
    for key, count in enumerate([2, 1, 0, 4, 2, 1, 3, 1, 2, 4, 1]):
        lengths = rng.integers(1, 13, count)
        width = int(lengths.max(initial=1)) + 2 * (key % 2)
        tokens = rng.integers(0, VOCABULARY, (count, width))
        tokens[np.arange(width)[None] >= lengths[:, None]] = 0
        weight = 1.0 if key % 3 else 0.25
        units.append(Unit(key, torch.from_numpy(tokens), torch.from_numpy(lengths), weight))
    return units


class Opened:
    """Any network as a language model that can be looked into.

    Args:
        module: from tokens to logits.
        trainable: the parameters that move; by default all.
    """

    name = "odd"
    device = torch.device("cpu")
    vocabulary_size = VOCABULARY

    def __init__(self, module: nn.Module, trainable: Sequence[str] | None = None) -> None:
        self.module = module.requires_grad_(False)
        names = [name for name, _ in module.named_parameters()]
        self.places = {name: name for name in (names if trainable is None else trainable)}

    def initial_parameters(self) -> dict[str, torch.Tensor]:
        return {name: self.module.get_parameter(name).clone() for name in self.places}

    def logits(self, parameters: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(self.module, parameters, (tokens,))
        return result


class GivenUnits:
    """A task whose units are the ones given."""

    averages_gradients: ClassVar[bool] = True

    def __init__(self, model: OpenModel, units: list[Unit]) -> None:
        self._model = model
        self.given = [replace(unit, key=key) for key, unit in enumerate(units)]
        self.keys = np.arange(len(units))

    def unit(self, key: int, round: int) -> Unit:
        return self.given[key]

    def units(self, keys: Keys, round: int) -> list[Unit]:
        return [self.given[key] for key in keys.tolist()]

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        return mean_gradient(self._model, parameters, unit)


def relative(left: WeightedSum, right: WeightedSum) -> float:
    """Return ‖left − right‖/‖right‖."""
    difference = {name: left.values[name] - right.values[name] for name in right.values}
    return l2_norm(difference) / l2_norm(right.values)


def sum_of(
    model: OpenModel, parameters: Tensors, clip: Clip, engine: Engine, units: list[Unit]
) -> Tensors:
    task = GivenUnits(model, units)
    return engine(task, parameters, task.keys, clip, 0).values
