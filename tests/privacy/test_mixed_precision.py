"""With bfloat16 arithmetic nobody moves the sum by more than the bound, and types stay wide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedsim
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example.gradient_terms import write_product
from fedsim.clients.models.gpu_kernels import aligned_room
from fedsim.clients.models.mixed_precision import MixedPrecision, in_precision
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import Clip, FlatClip, NoClip
from fedsim.config import ModelConfig
from fedsim.estimators import WeightedSum
from fedsim.execution import Engine, Task
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials
from fedsim.runner.folder import RunFolder
from fedsim.tensors import Tensors
from tests.conftest import DEVICE, small_config
from tests.contracts.layer_samples import relative, small_model
from tests.contracts.test_engines import ENGINES
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


@pytest.fixture
def mixed(materials: Materials) -> Materials:
    return narrow(replace(materials, model=small_model(ModelConfig(), DEVICE)))


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
