"""With bfloat16 arithmetic nobody moves the sum by more than the bound, and types stay wide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import fedsim
from fedsim.clients.engine_choice import Auto, choose_engine
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example import chunks
from fedsim.clients.engines.per_example.batched import BatchedEngine
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import Ghost
from fedsim.clients.engines.per_example.gradient_terms import write_product
from fedsim.clients.models.gpu_kernels import aligned_room
from fedsim.clients.models.mixed_precision import MixedPrecision, in_precision
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import Clip, FlatClip, NoClip
from fedsim.config import ModelConfig, parse_config
from fedsim.errors import ConfigError
from fedsim.estimators import WeightedSum
from fedsim.execution import Engine, Task, Unit
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials
from fedsim.runner.folder import RunFolder
from fedsim.tensors import Tensors, l2_norm
from tests.conftest import DEVICE, Log, Patch, small_config
from tests.contracts.layer_samples import GivenUnits, gpt2, opened, relative, small_model
from tests.contracts.test_engines import ENGINES, vmapped
from tests.helpers.light import check_going_on, light_config

BOUND = 0.001  # far below any user's norm: everybody is clipped
CLIP = FlatClip(l2_clip_norm=BOUND)
USERS = np.arange(8)
UNPROVED = 14.0 * 2.0**-24  # of a bound a unit: what `fedsim.noise` sets aside for it

WHOLE = ModelConfig(pretraining_steps=0)  # tiny-gpt at its own width; all others are narrow
MODELS = {
    "tiny-gpt": WHOLE,
    "tiny-gpt lora": ModelConfig(lora_rank=2),
    "mcmahan-lstm": ModelConfig(name_or_path="mcmahan-lstm"),
    "tiny-gpt sdpa": ModelConfig(attention="sdpa"),
}
WAYS: dict[str, tuple[Callable[[LanguageModel], Engine], bool]] = {
    **{name: (ENGINES[name], True) for name in ("loop", "vmap", "materialised", "ghost")},
    "loop, fedavg": (lambda _model: loop, False),
}


@pytest.fixture(scope="module", params=list(MODELS.values()), ids=list(MODELS))
def exact(request: pytest.FixtureRequest, speeches: Path) -> Materials:
    whole = load_materials(0, small_config(speeches).data, WHOLE, DEVICE)
    if request.param == WHOLE:
        return whole
    return replace(whole, model=small_model(request.param, DEVICE))


def narrow(materials: Materials) -> Materials:
    return replace(materials, model=in_precision(materials.model, "bfloat16"))


def task_of(materials: Materials, *, averages: bool) -> Task:
    if averages:
        return AveragedGradient(materials, group_size=3)
    return LocalSGD(materials, group_size=3, batch_size=2, learning_rate=0.1)


def start(materials: Materials) -> dict[str, torch.Tensor]:
    """Parameters of which none is zero: LoRA starts with gradients that are."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: (value + 0.02 * torch.randn(value.shape, generator=generator)).to(DEVICE)
        for name, value in materials.model.initial_parameters().items()
    }


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_bound_holds_and_types_stay_wide(
    exact: Materials, way: tuple[Callable[[LanguageModel], Engine], bool], caplog: Log
) -> None:
    """Nobody moves the others either, but by `vmap`, which a config cannot ask for."""
    make, averages = way
    parameters, materials = start(exact), narrow(exact)
    task, engine = task_of(materials, averages=averages), make(materials.model)
    everybody = engine(task, parameters, USERS, CLIP, 0)
    assert l2_norm(everybody.values) <= len(USERS) * BOUND
    for user in USERS[[0, -1]]:
        alone = engine(task, parameters, np.array([user]), CLIP, 0)
        assert 0.99 * BOUND <= l2_norm(alone.values) <= BOUND
        others = engine(task, parameters, np.delete(USERS, user), CLIP, 0)
        moved = {k: everybody.values[k] - others.values[k] for k in others.values}
        assert make is vmapped or l2_norm(moved) <= BOUND * (1.0 + 3e-6)
    assert all(value.dtype == torch.float64 for value in everybody.values.values())
    assert all(value.dtype == torch.float32 for value in parameters.values())
    assert everybody.num_non_finite == 0
    assert not caplog.records  # nothing was left to another engine


class Kernels(TorchFunctionMode):
    """Products of linear layers, of which some rows get the next number of bfloat16.

    As kernels do that cut the inner dimension by the shape, in one piece or in two, each rounded.
    """

    def __init__(self, of: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._of = of

    def __torch_function__(
        self,
        func: Callable[..., torch.Tensor],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> torch.Tensor:
        out = func(*args, **(kwargs or {}))
        if func in (torch.nn.functional.linear, torch.addmm):
            flat = out.detach().flatten(0, -2)
            return out * (1.0 + 2.0**-7 * self._of(flat).view(*out.shape[:-1], 1))
        return out


KERNELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "by the number of rows": lambda out: torch.full_like(out[:, 0], len(out) >= 200),
    "by the place": lambda out: (torch.arange(len(out), device=out.device) % 64 < 32).to(out),
    "by the others": lambda out: (out[:, 0].roll(32) > 0.0).to(out),
}


@pytest.fixture
def mixed(materials: Materials) -> Materials:
    return narrow(replace(materials, model=small_model(ModelConfig(), DEVICE)))


@pytest.mark.parametrize("by", list(KERNELS))
def test_in_bfloat16_nobody_moves_anybody_else(
    by: str, mixed: Materials, monkeypatch: Patch
) -> None:
    """Units share passes of fixed shapes, or none, where kernels round by who else is there."""
    honest = MixedPrecision.logits

    def logits(
        self: MixedPrecision, values: Tensors, tokens: torch.Tensor, *positions: torch.Tensor
    ) -> torch.Tensor:
        with Kernels(KERNELS[by]):
            return honest(self, values, tokens, *positions)

    monkeypatch.setattr(MixedPrecision, "logits", logits)
    parameters, task = start(mixed), task_of(mixed, averages=True)

    def moved(engine: Engine) -> float:
        """Of the others by the user in front, who shifts them all to other places."""
        with_it = engine(task, parameters, USERS, CLIP, 0).values
        without = engine(task, parameters, USERS[1:], CLIP, 0).values
        alone = engine(task, parameters, USERS[:1], CLIP, 0).values
        apart = {k: with_it[k] - without[k] - alone[k] for k in alone}
        return l2_norm(apart) / BOUND

    within = UNPROVED * len(USERS)
    for name in ("auto", "materialised"):
        assert moved(choose_engine(name, task, mixed.model, 96.0)) <= within
    monkeypatch.setattr(BatchedEngine, "_fix_sizes", lambda _self, _limits: None)
    assert moved(choose_engine("materialised", task, mixed.model)) > 1e-3


def test_in_bfloat16_a_newcomer_who_shifts_everybody_moves_the_others_by_what_is_stated(
    mixed: Materials,
) -> None:
    """By the kernels that are here, over several passes: what float32's sums make of it."""
    rng = np.random.default_rng(0)
    units = []
    for key in range(400):
        size, longest = int(rng.integers(1, 4)), int(rng.integers(3, 33))
        tokens = torch.from_numpy(rng.integers(0, mixed.model.vocabulary_size, (size, longest)))
        units.append(Unit(key, tokens, torch.full((size,), longest)))
    task = GivenUnits(cast(OpenModel, mixed.model), units)
    parameters, engine = start(mixed), choose_engine("auto", task, mixed.model, 96.0)

    def summed(first: int, last: int = len(units)) -> Tensors:
        return engine(task, parameters, np.arange(first, last), CLIP, 0).values

    with_it, without, alone = summed(0), summed(1), summed(0, 1)
    rest = l2_norm({name: with_it[name] - without[name] - alone[name] for name in alone})
    assert rest <= UNPROVED * len(units) * BOUND


@pytest.mark.parametrize("others", [4, 132])
def test_in_bfloat16_nobody_moves_the_others_of_a_wide_network(others: int) -> None:
    """Where passes of several sizes, in which one text had the same bits, moved them by 16 to 1092
    shares on one processor: few of many numbers are rounded otherwise, and none of that text's.
    """
    torch.manual_seed(3)
    network = gpt2(vocab_size=500, n_positions=64, n_embd=256, n_layer=1, n_head=4)
    exact = opened(network, length=64, device=DEVICE)
    model = in_precision(exact, "bfloat16")
    source = torch.Generator().manual_seed(2)
    parameters = {
        name: (value + 0.02 * torch.randn(value.shape, generator=source)).to(DEVICE)
        for name, value in exact.initial_parameters().items()
    }
    for seed in range(3):
        source.manual_seed(seed)
        texts = torch.randint(0, 500, (others + 1, 1, 32), generator=source)
        units = [
            Unit(key, text, torch.tensor([32]), weight=float(key > 0))
            for key, text in enumerate(texts)
        ]
        task = GivenUnits(cast(OpenModel, model), units)
        engine = choose_engine("auto", task, model, 32.0)
        assert isinstance(engine, Auto)
        with_it = engine(task, parameters, task.keys, CLIP, 0).values
        without = engine(task, parameters, task.keys[1:], CLIP, 0).values
        moved = l2_norm({name: with_it[name] - without[name] for name in without})
        assert moved <= UNPROVED * others * BOUND


def test_in_bfloat16_no_engine_is_named() -> None:
    for engine in ("ghost", "vmap", "materialised"):
        with pytest.raises(ConfigError, match="would move with the units that share"):
            parse_config({"executor": {"engine": engine, "precision": "bfloat16"}})
    parse_config({"executor": {"engine": "loop", "precision": "bfloat16"}})


@pytest.mark.parametrize("words", [5, 48, 49, 55, 2001])
@pytest.mark.parametrize("add", [False, True])
def test_products_over_any_number_of_words_are_summed_in_float32(words: int, add: bool) -> None:
    """As of scores, whose gradient lies so that tensor cores read it: units' and one unit's."""
    source = torch.Generator().manual_seed(words)
    room = aligned_room(torch.empty(6, 16, words, device=DEVICE), torch.bfloat16)
    room.copy_(torch.randn(room.shape, generator=source))
    left = room.reshape(2, 48, words).mT
    right = torch.randn(2, 48, 24, generator=source).to(DEVICE, torch.bfloat16)
    before = torch.randn(2, words, 24, generator=source).to(DEVICE)
    exact = left.double() @ right.double() + (before.double() if add else 0.0)
    for unit in (slice(2), 0):
        out = before.clone()
        write_product(out[unit], left[unit], right[unit], add=add)
        torch.testing.assert_close(out[unit].double(), exact[unit], rtol=1e-5, atol=1e-4)


def test_in_bfloat16_free_memory_decides_nothing(mixed: Materials, monkeypatch: Patch) -> None:
    """Workers have not the same free, and who else is there decides which of them computes whom."""

    def refused(_device: torch.device) -> int:
        raise AssertionError("asked what is free")

    monkeypatch.setattr(chunks, "memory_budget", refused)
    task = task_of(mixed, averages=True)
    choose_engine("auto", task, mixed.model, 96.0)(task, start(mixed), USERS, CLIP, 0)


def clip_of(*, averages: bool) -> Clip:
    return NoClip() if averages else CLIP


@pytest.fixture(scope="module")
def wide(exact: Materials) -> dict[bool, WeightedSum]:
    """The loop's sums in float32, of averaged gradients and of local training."""
    return {
        averages: loop(
            task_of(exact, averages=averages), start(exact), USERS, clip_of(averages=averages), 0
        )
        for averages in (True, False)
    }


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_sum_is_float32s_but_for_rounding(
    exact: Materials,
    wide: dict[bool, WeightedSum],
    way: tuple[Callable[[LanguageModel], Engine], bool],
) -> None:
    make, averages = way
    task = task_of(narrow(exact), averages=averages)
    engine, clip = make(narrow(exact).model), clip_of(averages=averages)
    total, expected = engine(task, start(exact), USERS, clip, 0), wide[averages]
    assert 1e-5 < relative(total, expected) < 0.02
    assert total.loss == pytest.approx(expected.loss, rel=0.01)


def away_from_zero(value: torch.Tensor) -> torch.Tensor:
    """Round float32 to numbers that bfloat16 has: the upper half of the bits."""
    if value.dtype != torch.float32:  # numbers of words
        return value
    bits = value.contiguous().view(torch.int32)
    return ((bits + 0xFFFF) & -0x10000).view(torch.float32)


def test_a_norm_taken_of_other_numbers_than_the_sum_breaks_the_bound(
    mixed: Materials, monkeypatch: Patch
) -> None:
    """The mutation that the tests above are for: the sum of gradients rounded after the norm.

    To bfloat16 and away from zero, so that how a processor's own products round decides nothing.
    """
    engine = cast(BatchedEngine, ENGINES["ghost"](mixed.model))
    task, parameters = task_of(mixed, averages=True), start(mixed)
    engine(task, parameters, USERS[:1], CLIP, 0)  # verifies

    honest = Ghost.weighted_sum

    def rounded(self: Ghost, factors: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        self._terms = {
            name: [(use.map(away_from_zero), of) for use, of in uses]
            for name, uses in self._terms.items()
        }
        return honest(self, factors)

    monkeypatch.setattr(Ghost, "weighted_sum", rounded)
    norms = [l2_norm(engine(task, parameters, np.array([u]), CLIP, 0).values) for u in USERS]
    assert min(norms) > BOUND * (1.0 + 1e-4)


def test_all_but_the_logits_is_the_models_own(materials: Materials) -> None:
    model = in_precision(materials.model, "bfloat16")
    assert isinstance(model, MixedPrecision)
    assert in_precision(materials.model, "float32") is materials.model
    assert model.name == materials.model.name
    assert model.tokenizer_fingerprint == materials.model.tokenizer_fingerprint
    parameters: Tensors = model.initial_parameters()
    tokens = torch.arange(12).view(2, 6)
    rounded = model.logits(parameters, tokens)
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, rounded.bfloat16().float())  # the last product's own rounding
    assert not torch.is_autocast_enabled("cpu")
    assert model.exact.logits(parameters, tokens).sub(rounded).abs().max() > 0.0


def test_a_run_resumes_to_the_same_bits(speeches: Path, tmp_path: Path) -> None:
    config = light_config(speeches, executor={"precision": "bfloat16"})
    folder = RunFolder(fedsim.run(config, tmp_path / "run").path)
    assert len([*folder.checkpoints.iterdir()]) > 1
    check_going_on(config, folder, lost=1)
    exact = RunFolder(fedsim.run(light_config(speeches), tmp_path / "exact").path)
    found, other = (each.model / "model.safetensors" for each in (folder, exact))
    assert found.read_bytes() != other.read_bytes()
