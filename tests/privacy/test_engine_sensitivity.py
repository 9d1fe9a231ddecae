"""No engine lets a user move the sum by more than what the noise covers, in any precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.engines.per_example import chunks
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.stacked import engine as stacked
from fedsim.clients.engines.vmap import VmapEngine
from fedsim.clients.models.mixed_precision import in_precision
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import Clip, FlatClip, NormalisedClip, PerLayerClip, layers_of
from fedsim.config import ModelConfig, Precision
from fedsim.execution import Unit
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials
from fedsim.noise.tolerance import ROUNDING_TOLERANCE
from fedsim.tensors import Tensors, l2_norm
from tests.conftest import DEVICE, Log, Patch, small_config
from tests.contracts.layer_samples import VOCABULARY, GivenUnits, Opened, network, small_model
from tests.contracts.test_engines import ENGINES
from tests.contracts.test_local_training import GivenLocalSGD

BOUND = 0.001  # far below any user's norm: everybody is clipped
MOST = BOUND * (1.0 + ROUNDING_TOLERANCE)
LARGE_RATE = 1.0  # of local steps
MODELS = {
    "tiny-gpt": ModelConfig(),
    "tiny-gpt lora": ModelConfig(lora_rank=2),
    "tiny-gpt sdpa": ModelConfig(attention="sdpa"),
    "mcmahan-lstm": ModelConfig(name_or_path="mcmahan-lstm"),
}
CLIPS: dict[str, Callable[[Tensors], Clip]] = {
    "flat": lambda _: FlatClip(l2_clip_norm=BOUND),
    "per-layer": lambda layout: PerLayerClip.evenly(BOUND, layers_of(layout)),
    "normalised": lambda _: NormalisedClip(clip=FlatClip(l2_clip_norm=BOUND)),
}
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")


@pytest.fixture(scope="module")
def texts(speeches: Path) -> Materials:
    config = small_config(speeches)
    return load_materials(config.seed, config.data, config.model, DEVICE)


@cache
def model_of(name: str) -> LanguageModel:
    return small_model(MODELS[name], DEVICE)


def start(model: LanguageModel) -> dict[str, torch.Tensor]:
    """Return parameters of which none is zero: adapters begin with gradients that are."""
    source = torch.Generator().manual_seed(0)
    return {
        name: (value + 0.02 * torch.randn(value.shape, generator=source)).to(DEVICE)
        for name, value in model.initial_parameters().items()
    }


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("model", "clip"), [*((name, "flat") for name in MODELS), *(("tiny-gpt", c) for c in CLIPS)]
)
def test_a_user_moves_the_sum_by_at_most_the_bound(
    model: str, clip: str, engine: str, precision: Precision, texts: Materials
) -> None:
    network = in_precision(model_of(model), precision)
    task = AveragedGradient(replace(texts, model=network), group_size=3)
    parameters, users = start(network), np.arange(9)
    bounded, computed = CLIPS[clip](parameters), ENGINES[engine](network)
    everybody = computed(task, parameters, users, bounded, 0)
    assert everybody.num_non_finite == 0
    assert all(value.dtype == torch.float64 for value in everybody.values.values())
    for user in users[[0, -1]]:
        alone = l2_norm(computed(task, parameters, np.array([user]), bounded, 0).values)
        others = computed(task, parameters, users[users != user], bounded, 0)
        moved = l2_norm({k: everybody.values[k] - others.values[k] for k in others.values})
        share = bounded.bound / BOUND
        assert 0.99 * bounded.bound <= alone <= (MOST if precision == "bfloat16" else BOUND) * share
        assert 0.99 * bounded.bound <= moved <= MOST * share


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("engine", ["vmap", "materialised", "ghost", "auto"])
@pytest.mark.parametrize("name", ["gpt2 tied", "lstm"])
def test_a_newcomer_who_shifts_every_pass_moves_the_sum_by_at_most_the_bound(
    name: str, engine: str, precision: Precision, monkeypatch: Patch
) -> None:
    """One in front moves the last unit of each chunk to the next, and each row to another place."""
    exact, parameters = network(name, torch.float32)
    model = in_precision(exact, precision)
    monkeypatch.setattr(chunks, "CPU_TOKENS", 512)
    monkeypatch.setattr(chunks, "CPU_BYTES", 80 * sum(v.nbytes for v in parameters.values()))
    lengths = np.random.default_rng(0).integers(4, 10, 160).tolist()
    units = [unit_of(key + 1, length, key) for key, length in enumerate(lengths)]
    computed, clip = ENGINES[engine](model), FlatClip(l2_clip_norm=BOUND)

    def summed(units: list[Unit]) -> Tensors:
        task = GivenUnits(cast(OpenModel, model), units)
        return computed(task, parameters, task.keys, clip, 0).values

    without = summed(units)
    for length in (3, 8, 11):
        with_it = summed([unit_of(0, length, 1000), *units])
        assert l2_norm({name: with_it[name] - without[name] for name in without}) <= MOST


def unit_of(key: int, length: int, seed: int) -> Unit:
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(0, VOCABULARY, (2, length)))
    return Unit(key, tokens, torch.tensor([length, length - 2]))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["gpt2 tied", "gpt2 lora", "lstm"])
def test_a_newcomer_moves_ten_large_local_steps_by_at_most_the_bound(
    name: str, precision: Precision, monkeypatch: Patch
) -> None:
    """Each moves others to other places, beside others: steps so large amplify a last bit."""
    exact, parameters = network(name, torch.float32)
    model = in_precision(exact, precision)
    monkeypatch.setattr(stacked, "CPU_USERS", 4)
    rng = np.random.default_rng(0)
    units = [texts_of(key + 2, rng, int(rng.integers(1, 11))) for key in range(24)]
    clip = FlatClip(l2_clip_norm=BOUND)

    def summed(units: list[Unit]) -> Tensors:
        task = GivenLocalSGD(model, units, LARGE_RATE)
        engine = choose_engine("auto", task, model)
        assert isinstance(engine, stacked.StackedEngine)
        total = engine(task, parameters, task.keys, clip, 0)
        assert total.num_non_finite == 0
        return total.values

    without = summed(units)
    for key, count in ((0, 1), (1, 10)):
        with_it = summed([*units, texts_of(key, rng, count)])
        assert l2_norm({name: with_it[name] - without[name] for name in without}) <= MOST


def texts_of(key: int, rng: np.random.Generator, count: int) -> Unit:
    lengths = rng.integers(3, 13, count)
    tokens = rng.integers(0, VOCABULARY, (count, int(lengths.max())))
    return Unit(key, torch.from_numpy(tokens), torch.from_numpy(lengths))


class ScoresWords(nn.Module):
    """Frozen vectors of words, and the weights that score the next word by them.

    Words 1 and 2 have opposite vectors, word 2's 64 times the longer; words 0 and 9 have zeros.
    """

    def __init__(self, size: float) -> None:
        super().__init__()
        self.words, self.output = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY, bias=False)
        vectors = torch.zeros(VOCABULARY, 8)
        vectors[3:, 0] = 0.45
        vectors[9] = 0.0
        vectors[1, 0], vectors[2, 0] = size, -64.0 * size
        self.words.weight.data.copy_(vectors)
        self.output.weight.data.zero_()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.Tensor(self.output(self.words(tokens)))


def test_no_user_decides_that_everybody_is_computed_otherwise(monkeypatch: Patch) -> None:
    """Layer rules are verified on made-up tokens."""
    torch.manual_seed(0)
    module = ScoresWords(1e25)
    model = cast(OpenModel, Opened(module, ("output.weight",)))
    parameters = model.initial_parameters()
    newcomer = Unit(0, torch.tensor([[1, 9, 0, 0]]), torch.tensor([4]))
    others = [
        Unit(key, torch.randint(10, VOCABULARY, (1, 3)), torch.tensor([3])) for key in range(1, 9)
    ]
    task = GivenUnits(model, [newcomer, *others])
    monkeypatch.setattr("fedsim.clients.engines.per_example.batched.loop", None)
    total = ghost(model)(task, parameters, task.keys, FlatClip(l2_clip_norm=1.0), 0)
    assert total.num_units == 9


class RefusesVectorisation(nn.Module):
    """A layer without a rule, which torch cannot vectorise: of texts of some lengths, or of any."""

    def __init__(self, lengths: range) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 8)
        self.scale = nn.Parameter(torch.ones(VOCABULARY))
        self.lengths = lengths

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if (
            tokens.shape[1] in self.lengths
            and torch._C._functorch.maybe_current_level() is not None
        ):
            raise RuntimeError("no batching rule for this")
        return torch.Tensor(self.words(tokens) @ self.words.weight.T * self.scale)


def test_no_text_decides_that_everybody_is_computed_one_by_one(caplog: Log) -> None:
    """Whether vmap can is tried on made-up tokens; a text that it cannot take ends the run."""
    torch.manual_seed(0)
    units = [Unit(key, torch.randint(VOCABULARY, (1, 4)), torch.tensor([4])) for key in range(4)]
    newcomer = Unit(4, torch.ones(1, 5, dtype=torch.int64), torch.tensor([5]))
    some, every = range(5, 6), range(1, 99)
    for lengths, name in ((some, "vmap"), (every, "loop")):
        model = cast(OpenModel, Opened(RefusesVectorisation(lengths)))
        parameters = model.initial_parameters()
        task, clip = GivenUnits(model, [*units, newcomer]), FlatClip(l2_clip_norm=1.0)
        caplog.clear()
        with caplog.at_level("INFO"):
            engine = choose_engine("auto", task, model, 8)
            before = engine(task, parameters, task.keys[:4], clip, 0)
        assert f"engine {name}" in caplog.text
        if name == "loop":
            assert "and vmap cannot: no batching rule for this" in caplog.text
            assert engine(task, parameters, task.keys, clip, 0).num_units == 5
            continue
        with pytest.raises(RuntimeError, match="no batching rule for this"):
            engine(task, parameters, task.keys, clip, 0)
        after = engine(task, parameters, task.keys[:4], clip, 0)
        expected = VmapEngine(model)(task, parameters, task.keys[:4], clip, 0)
        for place, value in expected.values.items():
            assert torch.equal(before.values[place], value)
            assert torch.equal(after.values[place], value)
