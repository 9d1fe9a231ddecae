"""A network whose logits depend on more than the text before them is refused.

One user would change the gradients of all who share a pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertLMHeadModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
)

from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.engines.per_example.packing import row_tokens
from fedsim.clients.engines.vmap import VmapEngine
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.clipping import FlatClip
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError
from fedsim.execution import Engine, Unit
from fedsim.language_model import check_causal, spread, unused_parameters
from fedsim.materials import load_model
from fedsim.runner.session import warn_unused_parameters as say_unused
from fedsim.tensors import l2_norm
from tests.contracts import layer_samples
from tests.contracts.layer_samples import NETWORKS, VOCABULARY, GivenUnits, network
from tests.helpers.commands import fedsim, write_config


def bert(zeros: bool = False) -> PreTrainedModel:
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=12, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=64,
    )  # fmt: skip
    config._attn_implementation = "eager"  # as `open_pretrained` asks for
    network = BertLMHeadModel(config)
    if zeros:
        nn.init.zeros_(network.cls.predictions.decoder.weight)
    return network


def phi3(originally: int = 16, zeros: bool = False) -> PreTrainedModel:
    factors = {"long_factor": [4.0] * 3, "short_factor": [1.0] * 3}
    config = Phi3Config(
        vocab_size=VOCABULARY, hidden_size=12, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=64, pad_token_id=0,
        original_max_position_embeddings=originally,
        rope_parameters={"rope_type": "longrope", **factors},
    )  # fmt: skip
    network = Phi3ForCausalLM(config)
    if zeros:
        nn.init.zeros_(network.model.layers[0].self_attn.o_proj.weight)
    return network


class MeansOfTheBatch(nn.Module):
    """What a norm over the batch does."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + hidden.mean(0, keepdim=True)


class ConvolvesAllRows(nn.Module):
    """What a causal convolution over the tokens of all rows end to end does."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        before = nn.functional.pad(hidden.flatten(0, 1), (0, 0, 1, 0))[:-1]
        return hidden + before.view(hidden.shape)


class CountsCalls(nn.Module):
    """What a network does that changes itself the first time that it is used."""

    calls = 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return hidden * (1.0 + 1.0 / self.calls)


class Rescales(nn.Module):
    """What RWKV does with its weights in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(12))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.mul_(0.5).mul_(2.0)
        return hidden * self.weight


def with_norm(norm: nn.Module) -> PreTrainedModel:
    network = phi3(64)
    network.model.norm = norm
    return network


def masked(network: PreTrainedModel, score: float) -> PreTrainedModel:
    """One that gives four words the same score whatever it reads, as those that fill up a table."""
    head = network.lm_head
    added = torch.zeros(VOCABULARY)
    added[-4:] = score
    network.lm_head = nn.Linear(head.in_features, VOCABULARY)
    with torch.no_grad():
        network.lm_head.weight.copy_(head.weight)
        network.lm_head.bias.copy_(added)
    return network


def opened(make: Callable[[], PreTrainedModel], length: int = 32) -> TransformersModel:
    torch.manual_seed(0)
    return layer_samples.opened(make(), length=length)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (bert, "tokens after them"),
        (lambda: bert(zeros=True), "tokens after them"),
        (lambda: with_norm(MeansOfTheBatch()), "the other texts of a pass"),
        (lambda: with_norm(ConvolvesAllRows()), "the other texts of a pass"),
        (lambda: with_norm(CountsCalls()), "how often they were computed before"),
        (lambda: masked(with_norm(MeansOfTheBatch()), -1e9), "the other texts of a pass"),
        (lambda: masked(with_norm(MeansOfTheBatch()), -math.inf), "the other texts of a pass"),
        (lambda: masked(with_norm(CountsCalls()), -1e9), "how often they were computed before"),
        (lambda: phi3(zeros=True), "the length of the longest text of a pass"),
        (phi3, "the length of the longest text of a pass"),
    ],
    ids=[
        "bert",
        "bert with an output of zeros",
        "a norm over the batch",
        "a convolution over all rows",
        "a count of calls",
        "a norm over the batch beside words that are never used",
        "a norm over the batch beside words that cannot be",
        "a count of calls beside words that are never used",
        "longrope that begins with zeros",
        "longrope",
    ],
)
def test_one_whose_logits_depend_on_others_is_refused(
    make: Callable[[], PreTrainedModel], said: str
) -> None:
    with pytest.raises(ConfigError, match=f"^model: its logits depend on {said}"):
        check_causal(opened(make), "model", 32)


@pytest.mark.parametrize(
    ("make", "fast", "lengths", "newcomer"),
    [
        (bert, VmapEngine, [26], [60]),
        (lambda: phi3(28), materialised, [26], [30]),
        (lambda: phi3(48), materialised, [32, 32], [40]),
    ],
    ids=["bert", "longrope", "longrope with room for two texts a row"],
)
def test_a_newcomer_pads_nobody_elses_rows(
    make: Callable[[], PreTrainedModel],
    fast: Callable[[OpenModel], Engine],
    lengths: list[int],
    newcomer: list[int],
) -> None:
    """Eleven users and a longer one: in passes that are padded to the longest, or that go by the
    largest position, such networks, which see it, moved everybody by more than the bound.
    """
    model, clip = opened(make), FlatClip(l2_clip_norm=0.01)
    torch.manual_seed(1)
    units = [
        Unit(key, torch.randint(VOCABULARY, (len(of), max(of))), torch.tensor(of))
        for key, of in enumerate([lengths] * 11 + [newcomer])
    ]
    # As after some steps: at its start attention looks everywhere alike.
    parameters = {
        name: value + 0.5 * torch.randn_like(value)
        for name, value in model.initial_parameters().items()
    }
    task, moved = GivenUnits(cast(OpenModel, model), units), []
    for engine in (fast(cast(OpenModel, model)), loop):
        everybody, others = (
            engine(task, parameters, keys, clip, 0).values for keys in (task.keys, task.keys[:-1])
        )
        moved.append(l2_norm({name: everybody[name] - others[name] for name in everybody}))
    assert max(moved) <= 1.00001 * clip.bound


@pytest.mark.parametrize("trainable", ["all", "embed_tokens"])
def test_one_that_writes_into_its_weights_is_refused(trainable: str) -> None:
    """They are the server's, or the frozen ones, which are saved."""
    model = layer_samples.opened(with_norm(Rescales()), ModelConfig(trainable=trainable), 32)
    with pytest.raises(ConfigError, match=r"^model: it writes into its parameters while it"):
        check_causal(model, "model", 32)


@pytest.mark.parametrize(("kind", "longest"), [(TypeError, 0), (RuntimeError, 9)])
def test_one_that_cannot_compute_is_refused_with_its_own_words(
    kind: type[Exception], longest: int
) -> None:
    class Fails(nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            if hidden.shape[1] > longest:
                raise kind("no such thing")
            return hidden

    said = rf"^model: its network cannot .*of 32 tokens .*{kind.__name__}: no such thing"
    with pytest.raises(ConfigError, match=said):
        check_causal(opened(lambda: with_norm(Fails())), "model", 32)


def test_one_that_gives_no_gradient_is_refused_with_its_own_words() -> None:
    class Fails(nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            assert not torch.is_grad_enabled(), "use model.train()"
            return hidden

    model = opened(lambda: with_norm(Fails()))
    check_causal(model, "model", 32)
    with pytest.raises(ConfigError, match=r"gives no gradient: AssertionError: use model\.train"):
        say_unused(model, 32)


def test_one_that_torch_cannot_vectorise_is_refused_by_name() -> None:
    class Fails(nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden * float(hidden.sum().item() ** 0)

    model = opened(lambda: with_norm(Fails()))
    task = GivenUnits(cast(OpenModel, model), [])
    with pytest.raises(ConfigError, match=r'^executor\.engine = "vmap": torch cannot vectorise'):
        choose_engine("vmap", task, model)


def deep_gemma() -> PreTrainedModel:
    """One that weights changed by more than their own size make too steep to compare."""
    config = Gemma3TextConfig(
        vocab_size=VOCABULARY, hidden_size=96, intermediate_size=200, num_hidden_layers=26,
        num_attention_heads=4, num_key_value_heads=1, head_dim=24, max_position_embeddings=64,
        sliding_window=16,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return Gemma3ForCausalLM(config)


def test_a_deep_network_is_neither_refused_nor_left_to_the_loop() -> None:
    model = opened(deep_gemma)
    check_causal(model, "model", 32)
    parameters = model.initial_parameters()
    assert row_tokens(cast(OpenModel, model), parameters)
    units = [Unit(key, torch.randint(VOCABULARY, (2, 9)), torch.tensor([9, 7])) for key in (0, 1)]
    task = GivenUnits(cast(OpenModel, model), units)
    engine = materialised(cast(OpenModel, model))
    engine(task, parameters, task.keys, FlatClip(l2_clip_norm=0.1), 0)
    assert not engine._refused


def test_what_no_text_uses_is_named() -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tower = nn.Linear(12, 12)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden

    model = opened(lambda: with_norm(Beside()))
    found = unused_parameters(model, 16)
    assert found == ["model.norm.tower.weight", "model.norm.tower.bias"]
    assert unused_parameters(opened(lambda: phi3(64)), 16) == []


@pytest.mark.parametrize("words", [60, 7907, 7919, 2 * 7919, 50257])
def test_made_up_words_are_many(words: int) -> None:
    assert len(set(spread(torch.arange(1, 25), words).tolist())) == 24


@pytest.mark.parametrize("name", NETWORKS)
def test_those_with_layer_rules_are_not(name: str) -> None:
    check_causal(network(name, torch.float32)[0], "model", 12)


def test_longrope_is_trained_within_its_short_lengths() -> None:
    check_causal(opened(phi3, 16), "model", 16)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_rows_too_short_to_tell(length: int) -> None:
    check_causal(opened(bert), "model", min(length, 1))
    check_causal(opened(lambda: phi3(64), length), "model", length)


@pytest.mark.parametrize("name", ["tiny-gpt", "mcmahan-lstm"])
def test_built_in_models_are_not(name: str) -> None:
    check_causal(load_model(ModelConfig(name_or_path=name, pretraining_steps=0)), "model", 64)


def test_the_command_refuses_it_and_writes_nothing(speeches: Path, tmp_path: Path) -> None:
    folder, run = tmp_path / "bert", tmp_path / "run"
    model = opened(bert)
    model.save(model.initial_parameters(), folder)
    keys = {"name_or_path": str(folder), "pretraining_steps": None, "trainable": "."}
    config = write_config(tmp_path / "config.toml", speeches, model=keys)
    said = fedsim("run", config, "--out", run)
    assert said.returncode == 2, said.stderr
    assert f"model.name_or_path = '{folder}': its logits depend on tokens after them" in said.stderr
    assert not run.exists()
