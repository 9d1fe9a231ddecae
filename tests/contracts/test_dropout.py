"""Dropout: the mask is the example's own, whatever computes it, and of the right rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

from fedsim.clients.engines.loop import loop
from fedsim.clients.models.dropout import (
    StreamDropout,
    at_step,
    example_streams,
    install_dropout,
    row_streams,
)
from fedsim.clients.models.tokenizers import word_tokenizer
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.clients.tasks.example_gradient import ExampleGradient
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import FlatClip
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError
from fedsim.estimators import WeightedSum
from fedsim.execution import Engine, Keys, Unit
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials, load_model
from fedsim.tensors import l2_norm
from tests.conftest import Log, Patch, small_config
from tests.contracts.definition import CLIP_MARGIN
from tests.contracts.layer_samples import NETWORKS, opened, relative, small_model
from tests.contracts.test_engines import ENGINES

P = 0.1
CLIP = FlatClip(l2_clip_norm=0.05)
USERS = np.arange(9)
Make = Callable[[LanguageModel], Engine]


def small_network(name: str) -> TransformersModel:
    """GPT-2's and GPT-Neo's own layers, of random weights."""
    make, config = NETWORKS[name]
    torch.manual_seed(3)
    return opened(make(), config.model_copy(update={"dropout": P}))


MODELS = ["tiny-gpt", "gpt2 lora", "gpt-neo"]  # tiny-gpt is a GPT-2 too: here a narrow one


@pytest.fixture(scope="module", params=MODELS)
def stuff(request: pytest.FixtureRequest, speeches: Path) -> Materials:
    """Materials whose model drops; those of other networks get ids that these have."""
    config = small_config(speeches)
    tiny = ModelConfig(pretraining_steps=0, dropout=P)
    narrow = request.param == "tiny-gpt"
    model = small_model(tiny) if narrow else small_network(request.param)
    return replace(load_materials(0, config.data, tiny, "cpu"), model=model)


class FewIds(AveragedGradient):
    """Users' examples, cut to what the smallest networks take."""

    def __init__(self, materials: Materials) -> None:
        super().__init__(materials, group_size=3)
        self._vocabulary = materials.model.vocabulary_size

    def unit(self, key: int, round: int) -> Unit:
        unit = super().unit(key, round)
        tokens = unit.tokens[:, :12] % self._vocabulary
        return replace(unit, tokens=tokens, lengths=unit.lengths.clamp(max=12))

    def units(self, keys: Keys, round: int) -> list[Unit]:
        return [self.unit(key, round) for key in keys.tolist()]


def start(model: LanguageModel) -> dict[str, torch.Tensor]:
    """Parameters of which none is zero: LoRA starts with a factor that is."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: value + 0.05 * torch.randn(value.shape, generator=generator)
        for name, value in model.initial_parameters().items()
    }


@pytest.fixture(scope="module")
def by_loop(stuff: Materials) -> dict[int, WeightedSum]:
    """The loop's sums of two rounds, which drop other entries."""
    task, parameters = FewIds(stuff), start(stuff.model)
    sums = {round: loop(task, parameters, USERS, CLIP, round) for round in (1, 2)}
    assert relative(sums[2], sums[1]) > 1e-3
    return sums


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_every_engine_drops_what_the_loop_drops(
    stuff: Materials, by_loop: dict[int, WeightedSum], make_engine: Make, caplog: Log
) -> None:
    total = make_engine(stuff.model)(FewIds(stuff), start(stuff.model), USERS, CLIP, 1)
    assert relative(total, by_loop[1]) < CLIP_MARGIN
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_a_unit_alone_is_the_same_bits_in_any_order(stuff: Materials, make_engine: Make) -> None:
    task, parameters = FewIds(stuff), start(stuff.model)
    engine = make_engine(stuff.model)
    forth = {key: engine(task, parameters, np.array([key]), CLIP, 0).values for key in range(4)}
    for key in reversed(range(4)):
        again = engine(task, parameters, np.array([key]), CLIP, 0).values
        assert all(torch.equal(value, again[name]) for name, value in forth[key].items())


def test_without_dropout_a_gradient_is_another(stuff: Materials) -> None:
    task, parameters = FewIds(stuff), start(stuff.model)
    unit = task.unit(3, 0)
    dropped = task.update(parameters, unit, 0).values
    plain = task.update(parameters, replace(unit, streams=None), 0).values
    apart = l2_norm({name: value - dropped[name] for name, value in plain.items()})
    assert apart > 1e-2 * l2_norm(plain)
    tokens = torch.arange(8)[None] % stuff.model.vocabulary_size  # evaluation knows no streams
    logits = stuff.model.logits(parameters, tokens)
    assert torch.equal(logits, stuff.model.logits(parameters, tokens))


def mask(streams: torch.Tensor, p: float = P, site: int = 0, length: int = 50) -> torch.Tensor:
    with row_streams(streams):
        dropped: torch.Tensor = StreamDropout(p, site)(torch.ones(len(streams), length, 40))
    return dropped


def streams_of(seed: int, round: int, user: int, num_examples: int) -> torch.Tensor:
    """Streams of a user's examples, all of different text."""
    users = np.full(num_examples, user, np.uint64)
    return example_streams(seed, round, users, np.arange(num_examples, dtype=np.uint64))


def p_value(kept: int, count: int, p: float) -> float:
    return float(stats.binomtest(kept, count, 1.0 - p).pvalue)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_rate_is_right_and_the_mean_kept(p: float) -> None:
    dropped = mask(streams_of(7, 0, 0, 20), p)
    kept, count = int((dropped > 0).sum()), dropped.numel()
    assert p_value(kept, count, p) > 1e-4
    assert p_value(kept, count, p + 0.02) < 1e-4  # what the test would notice
    assert sorted(set(dropped.flatten().tolist())) == pytest.approx([0.0, 1.0 / (1.0 - p)])
    assert dropped.mean().item() == pytest.approx(1.0, abs=5 * (p / (1 - p) / count) ** 0.5)


def test_every_address_has_a_mask_of_its_own() -> None:
    """Agreement of two masks is that of independent ones: p² + (1 − p)²."""
    base = streams_of(0, 0, 0, 2)
    others = {
        "example": (base[1:], 0),
        "user": (streams_of(0, 0, 1, 1), 0),
        "round": (streams_of(0, 1, 0, 1), 0),
        "seed": (streams_of(1, 0, 0, 1), 0),
        "layer": (base[:1], 1),
        "step": (at_step(base[:1], 0), 0),
        "later step": (at_step(base[:1], 1), 0),
    }
    masks = {"own": mask(base[:1], 0.5)}
    for name, (streams, site) in others.items():
        assert streams is not None
        masks[name] = mask(streams, 0.5, site)
    names = list(masks)
    for index, left in enumerate(names):
        for right in names[:index]:
            same = int((masks[left] == masks[right]).sum())
            assert p_value(same, masks[left].numel(), 0.5) > 1e-5, (left, right)


def test_padding_and_neighbours_change_no_mask() -> None:
    streams = streams_of(0, 0, 0, 5)
    assert torch.equal(mask(streams, length=80)[:, :50], mask(streams))
    assert torch.equal(mask(streams)[2:3], mask(streams[2:3]))
    vectorised = torch.func.vmap(lambda one: mask(one[None], P)[0])(streams)
    assert torch.equal(vectorised, mask(streams))


def splitmix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def test_the_hash_is_splitmix64() -> None:
    """In Python's integers, of which none wraps; its first output from 0 is a known one."""
    gamma = 0x9E3779B97F4A7C15
    assert splitmix(gamma) == 0xE220A8397B1DCDAF
    stream, site = 2**63 + 12345, 3
    key = splitmix(stream ^ splitmix((site + 1) * gamma % 2**64))
    chances = [splitmix((key + i * gamma) % 2**64) % 2**63 for i in range(1, 1 + 50 * 40)]
    expected = torch.tensor([chance >= round(0.5 * 2**63) for chance in chances]).view(1, 50, 40)
    assert torch.equal(mask(torch.tensor([stream - 2**64]), 0.5, site) > 0, expected)


def test_attention_weights_are_never_dropped() -> None:
    network = nn.ModuleDict({"attn_dropout": nn.Dropout(0.3), "resid": nn.Dropout(0.3)})
    assert install_dropout(network, P) == 1
    assert isinstance(network["attn_dropout"], nn.Dropout)
    assert isinstance(network["resid"], StreamDropout)
    weights = torch.ones(2, 4, 5, 5)  # (sequences, heads, positions, positions)
    with row_streams(streams_of(0, 0, 0, 2)):
        assert torch.equal(network["resid"](weights), weights)
        assert not torch.equal(network["resid"](weights[:, 0]), weights[:, 0])  # with three


def test_layers_that_see_tokens_without_their_texts_are_refused() -> None:
    config = Qwen2MoeConfig(
        vocab_size=60, hidden_size=16, intermediate_size=16, moe_intermediate_size=8,
        shared_expert_intermediate_size=8, num_experts=2, num_experts_per_tok=1,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    for target, refused in (("q_proj", False), ("up_proj", True)):
        adapters = ModelConfig(lora_rank=2, lora_target_modules=(target,), dropout=P)
        make = partial(
            TransformersModel, Qwen2MoeForCausalLM(config), word_tokenizer(60), adapters, origin=""
        )
        if refused:
            with pytest.raises(ConfigError, match=r"model\.dropout = .* a row per text"):
                make()
        else:
            make()


def test_a_network_without_dropout_layers_is_refused() -> None:
    config = ModelConfig(name_or_path="mcmahan-lstm", pretraining_steps=0, dropout=P)
    with pytest.raises(ConfigError, match=r"model\.dropout = 0\.1: the network of 'mcmahan-lstm'"):
        load_model(config)


def test_local_training_drops_anew_at_each_step(speeches: Path, monkeypatch: Patch) -> None:
    config = small_config(speeches, model={"dropout": P})
    stuff = load_materials(0, config.data, config.model, "cpu")
    task = LocalSGD(stuff, group_size=2, epochs=2, learning_rate=0.1)
    parameters = start(stuff.model)
    unit = task.unit(2, 0)
    update = task.update(parameters, unit, 0).values
    again = task.update(parameters, unit, 0).values
    assert all(torch.equal(value, again[name]) for name, value in update.items())
    monkeypatch.setattr("fedsim.clients.tasks.fedavg.at_step", lambda streams, _step: streams)
    other = task.update(parameters, unit, 0).values
    assert not all(torch.equal(value, other[name]) for name, value in update.items())


def test_an_example_is_a_unit_with_a_stream_of_its_own(speeches: Path) -> None:
    config = small_config(speeches, model={"dropout": P})
    task = ExampleGradient(load_materials(0, config.data, config.model, "cpu"))
    streams = [task.unit(key, round).streams for key, round in [(0, 0), (1, 0), (0, 1), (0, 0)]]
    numbers = [int(value) for value in streams if value is not None]
    assert len(set(numbers)) == 3
    assert numbers[0] == numbers[3]
