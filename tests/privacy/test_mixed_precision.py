"""With bfloat16 arithmetic nobody moves the sum by more than the bound, and types stay wide."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

import fedsim
from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example.batched import BatchedEngine
from fedsim.clients.engines.per_example.ghost import Ghost
from fedsim.clients.models.mixed_precision import MixedPrecision, in_precision
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import Clip, FlatClip, NoClip
from fedsim.config import ModelConfig, parse_config
from fedsim.errors import ConfigError
from fedsim.estimators import WeightedSum
from fedsim.execution import Engine, Task
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials
from fedsim.tensors import Tensors, l2_norm
from tests.conftest import DEVICE, small_config
from tests.contracts.layer_samples import relative, small_model
from tests.contracts.test_engines import ENGINES

BOUND = 0.001  # far below any user's norm: everybody is clipped
CLIP = FlatClip(l2_clip_norm=BOUND)
USERS = np.arange(8)

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
    exact: Materials,
    way: tuple[Callable[[LanguageModel], Engine], bool],
    caplog: pytest.LogCaptureFixture,
) -> None:
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
        assert l2_norm(moved) <= BOUND * (1.0 + 3e-6)
    assert all(value.dtype == torch.float64 for value in everybody.values.values())
    assert all(value.dtype == torch.float32 for value in parameters.values())
    assert everybody.num_non_finite == 0
    assert not caplog.records  # nothing was left to another engine


def test_in_bfloat16_every_unit_has_a_pass_of_its_own(
    materials: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that rounds a product otherwise for more rows: nobody moves anybody else.

    As kernels do that cut the inner dimension by the shape: below 200 rows in one piece, else in
    two, each rounded to bfloat16.
    """

    class ByRows(TorchFunctionMode):
        def __torch_function__(
            self,
            func: Callable[..., torch.Tensor],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: dict[str, object] | None = None,
        ) -> torch.Tensor:
            out = func(*args, **(kwargs or {}))
            if func in (torch.nn.functional.linear, torch.addmm) and out.shape[:-1].numel() >= 200:
                return out * (1.0 + 2.0**-7)  # the next number of bfloat16
            return out

    honest = MixedPrecision.logits

    def logits(self: MixedPrecision, values: Tensors, *rest: torch.Tensor) -> torch.Tensor:
        with ByRows():
            return honest(self, values, *rest)

    monkeypatch.setattr(MixedPrecision, "logits", logits)
    mixed = narrow(materials)
    parameters, task = start(mixed), task_of(mixed, averages=True)

    def moved(engine: Engine) -> float:
        together = engine(task, parameters, USERS, CLIP, 0).values
        alone = [engine(task, parameters, USERS[n : n + 1], CLIP, 0).values for n in USERS]
        apart = {k: together[k] - sum(each[k] for each in alone) for k in together}
        return l2_norm(apart) / BOUND

    assert moved(choose_engine("auto", task, mixed.model, 16.0)) < 1e-9
    assert moved(choose_engine("materialised", task, mixed.model)) > 1e-2
    for engine in ("materialised", "ghost", "vmap"):
        with pytest.raises(ConfigError, match="would move with the units that share"):
            parse_config({"executor": {"engine": engine, "precision": "bfloat16"}})


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
    speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation that the tests above are for: the sum of gradients rounded after the norm.

    To bfloat16 and away from zero, so that how a processor's own products round decides nothing.
    """
    config = small_config(speeches, model={"trainable": "all"})
    exact = load_materials(0, config.data, config.model, DEVICE)
    materials = narrow(exact)
    engine = cast(BatchedEngine, ENGINES["ghost"](materials.model))
    task, parameters = task_of(materials, averages=True), start(exact)
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
    config = small_config(speeches, executor={"precision": "bfloat16"})
    whole = fedsim.run(config, tmp_path / "whole").path
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    shutil.rmtree(cut / "model")
    saved = sorted((cut / "checkpoints").iterdir())
    assert len(saved) > 1
    shutil.rmtree(saved[-1]) if saved[-1].is_dir() else saved[-1].unlink()
    fedsim.run(config, cut, resume=True)
    weights = Path("model", "model.safetensors")
    assert (cut / weights).read_bytes() == (whole / weights).read_bytes()
    exact = fedsim.run(small_config(speeches), tmp_path / "exact").path
    assert (exact / weights).read_bytes() != (whole / weights).read_bytes()
