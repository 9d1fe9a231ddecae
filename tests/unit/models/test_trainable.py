"""Which parameters are selected, and what a pattern that selects none says."""

from __future__ import annotations

from functools import partial

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from fedsim.clients.models.tokenizers import word_tokenizer
from fedsim.clients.models.trainable import select_trainable
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError
from fedsim.language_model import check_causal
from tests.contracts.layer_samples import EXPERTS, opened

NAMES = ["wte.weight", "h.0.attn.weight", "h.0.attn.lora_A.default.weight", "ln_f.bias"]


@pytest.mark.parametrize(
    ("pattern", "lora", "selected"),
    [
        ("all", False, NAMES),
        ("all", True, ["h.0.attn.lora_A.default.weight"]),
        (r"attn\.w|bias$", False, ["h.0.attn.weight", "ln_f.bias"]),
        ("lora_|ln_f", True, NAMES[2:]),
    ],
)
def test_what_is_selected_stands_in_order(pattern: str, lora: bool, selected: list[str]) -> None:
    assert select_trainable(NAMES, pattern, lora=lora) == selected


def test_a_pattern_without_a_match_names_the_parameters() -> None:
    message = r"model\.trainable = 'mlp': matches none of the 4 parameters; .*wte\.weight"
    with pytest.raises(ConfigError, match=message):
        select_trainable(NAMES, "mlp")


@pytest.mark.parametrize("module", ["wte", "lm_head"])
def test_an_adapter_on_a_tied_weight_is_refused_where_it_would_be_merged(module: str) -> None:
    """The other place would be changed too: what is saved is not what was trained."""
    sizes = GPT2Config(
        vocab_size=60, n_embd=8, n_layer=1, n_head=1, n_positions=64, bos_token_id=1, eos_token_id=2
    )
    config = ModelConfig(lora_rank=2, lora_target_modules=(module,))
    for given, refused in ((config, True), (config.model_copy(update={"merged": False}), False)):
        network = GPT2LMHeadModel(sizes)
        make = partial(TransformersModel, network, word_tokenizer(60), given, origin="")
        if refused:
            with pytest.raises(ConfigError, match=rf"the weight of '(transformer\.)?{module}' is"):
                make()
        else:
            assert make().is_adapter


def test_experts_are_not_adapted() -> None:
    """For names that their matrices had apart, peft writes into their stack at each call."""
    make, _ = EXPERTS["qwen3-moe"]
    model = opened(make(), ModelConfig(lora_rank=2))
    places = {name.split(".lora_")[0].rpartition(".")[2] for name in model.initial_parameters()}
    assert places == {"q_proj", "k_proj", "v_proj", "o_proj"}
    shared, _ = EXPERTS["qwen2-moe"]  # has linear layers beside its experts
    assert {
        name.split(".lora_")[0].rpartition(".")[2]
        for name in opened(shared(), ModelConfig(lora_rank=2)).initial_parameters()
    } == places
    check_causal(model, "model", 16)
    stacked = opened(make(), ModelConfig(lora_rank=2, lora_target_modules=("q_proj", "gate")))
    with pytest.raises(ConfigError, match="it writes into its parameters"):
        check_causal(stacked, "model", 16)
