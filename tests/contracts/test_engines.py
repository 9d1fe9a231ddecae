"""Every engine computes what the definition says. A new engine is a new row of ENGINES."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from fedsim.clients.engine_choice import _vmap_refused, choice, choose_engine
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.engines.stacked.engine import StackedEngine
from fedsim.clients.engines.vmap import VmapEngine
from fedsim.clients.models.checkpointing import checkpointed
from fedsim.clients.models.mixed_precision import in_precision
from fedsim.clients.tasks.example_gradient import ExampleGradient
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.clipping import Clip, FlatClip, NoClip, NormalisedClip, layer_of, layers_of
from fedsim.clipping import PerLayerClip as PerLayer
from fedsim.config import DataConfig, ModelConfig, Precision
from fedsim.execution import Engine, Keys, Task, Unit
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials
from fedsim.tensors import Tensors, l2_norm
from tests.conftest import ANSWERS, small_config
from tests.contracts.definition import CLIP_MARGIN, Case, plain_mean
from tests.contracts.layer_samples import relative, small_model


def vmapped(model: LanguageModel) -> Engine:
    if (refused := _vmap_refused(model)) is not None:
        pytest.skip(refused)
    return VmapEngine(model)


ENGINES: dict[str, Callable[[LanguageModel], Engine]] = {
    "loop": lambda _model: loop,
    "vmap": vmapped,
    "materialised": lambda model: materialised(cast(OpenModel, model)),
    "ghost": lambda model: ghost(cast(OpenModel, model)),
    "auto": lambda model: choose_engine("auto", cast(Task, AveragedGradient), model),
}
TASKS: dict[str, Callable[[Materials], Task]] = {
    "fedsgd": lambda materials: AveragedGradient(materials, group_size=3),
    "fedsgd weighted": lambda materials: AveragedGradient(
        materials, group_size=4, user_weight_cap=5
    ),
    "example": ExampleGradient,
}
NUM_KEYS = 9
NUM_KEYS_OF_WHOLE = 3  # of models at their own size, each ten times the work
MODELS = {
    "tiny-gpt": ModelConfig(),
    "tiny-gpt ln": ModelConfig(trainable="ln_"),
    "tiny-gpt lora": ModelConfig(lora_rank=2),
    "tiny-gpt nf4": ModelConfig(lora_rank=2, quantisation="nf4", merged=False),
    "mcmahan-lstm": ModelConfig(name_or_path="mcmahan-lstm"),
}
FUSED = {"tiny-gpt sdpa": ModelConfig(attention="sdpa")}


@pytest.fixture(scope="module")
def materials(materials: Materials) -> Materials:
    return replace(materials, model=small_model(MODELS["tiny-gpt ln"]))


CASES = [
    *((f"narrow {model}", "fedsgd weighted") for model in [*MODELS, *FUSED, "tiny-gpt answers"]),
    *((f"narrow {model}", "example") for model in ("tiny-gpt", "mcmahan-lstm", "tiny-gpt answers")),
    ("narrow tiny-gpt", "fedsgd"),
    ("tiny-gpt", "fedsgd weighted"),
    ("mcmahan-lstm", "fedsgd"),
]


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def case(request: pytest.FixtureRequest, speeches: Path, answers: Path) -> Case:
    """With "answers" only the tokens of answers count; what is narrow reads as tiny-gpt does."""
    model, task_name = request.param
    of_answers, narrow = model.endswith(" answers"), model.startswith("narrow ")
    name = model.removeprefix("narrow ").removesuffix(" answers")
    config = small_config(answers, data=ANSWERS) if of_answers else small_config(speeches)
    stuff = loaded(config.data, "tiny-gpt" if narrow else name)
    assert stuff.store.manifest["loss_on"] == ("assistant" if of_answers else "all")
    if narrow:
        stuff = replace(stuff, model=small_model((MODELS | FUSED)[name]))
    task = TASKS[task_name](stuff)
    units = [task.unit(key, 0) for key in range(NUM_KEYS if narrow else NUM_KEYS_OF_WHOLE)]
    return Case(stuff, task, [(unit.weight, plain_mean(stuff.model, unit)) for unit in units])


@cache
def loaded(data: DataConfig, model: str) -> Materials:
    return load_materials(0, data, ModelConfig(name_or_path=model, pretraining_steps=0), "cpu")


CHECKPOINTED: dict[str, tuple[ModelConfig, Precision]] = {
    "all": (MODELS["tiny-gpt"], "float32"),
    "no block": (ModelConfig(trainable="wte"), "float32"),
    "lora": (ModelConfig(lora_rank=2, dropout=0.2), "bfloat16"),
    "fused": (FUSED["tiny-gpt sdpa"], "float32"),
    "nf4": (MODELS["tiny-gpt nf4"], "bfloat16"),
}


@pytest.mark.parametrize(("config", "precision"), CHECKPOINTED.values(), ids=CHECKPOINTED)
@pytest.mark.parametrize("name", ["loop", "materialised", "ghost", "local training"])
def test_blocks_that_are_computed_again_give_the_same_bits(
    name: str, config: ModelConfig, precision: Precision, materials: Materials
) -> None:
    model = small_model(config)
    generator = torch.Generator().manual_seed(0)  # adapters whose products are not zero
    parameters = {
        key: value + 0.02 * torch.randn(value.shape, generator=generator)
        for key, value in model.initial_parameters().items()
    }
    sums, calls = [], [0, 0]
    for again in (False, True):
        part = cast(torch.nn.Module, model.blocks[0].mlp)
        with part.register_forward_hook(lambda *_, again=again: count(calls, again)):
            found = replace(
                materials, model=in_precision(checkpointed(model, wanted=again), precision)
            )
            task: Task = (
                LocalSGD(found, group_size=3, batch_size=2, learning_rate=0.05)
                if name == "local training"
                else AveragedGradient(found, group_size=3)
            )
            engine = ENGINES.get(name, ENGINES["loop"])(found.model)
            sums.append(engine(task, parameters, np.arange(6), FlatClip(l2_clip_norm=0.05), 0))
    plain, recomputed = sums
    assert l2_norm(plain.values) > 0.0
    assert all(torch.equal(plain.values[key], recomputed.values[key]) for key in plain.values)
    assert plain.loss == recomputed.loss
    assert calls[1] > 1.3 * calls[0]  # one that stops to be computed again would be as quick


def count(calls: list[int], place: int) -> None:
    calls[place] += 1


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_engines_compute_the_definition(
    case: Case, make_engine: Callable[[LanguageModel], Engine]
) -> None:
    model, task = case.materials.model, case.task
    parameters = model.initial_parameters()
    clips: list[Clip] = [
        NoClip(),
        FlatClip(l2_clip_norm=0.05),
        PerLayer.evenly(0.1, layers_of(parameters)),
    ]
    engine, keys = make_engine(model), np.arange(len(case.updates))
    for clip in clips:
        total = engine(task, parameters, keys, clip, 0)
        expected = case.sum(clip)
        assert relative(total, expected) < (1e-5 if clip == NoClip() else CLIP_MARGIN)
        assert total.num_units == len(keys)
        assert total.weight == pytest.approx(expected.weight)
        assert total.num_gradients == sum(len(task.unit(k, 0).lengths) for k in keys.tolist())
        assert total.num_unclipped == expected.num_unclipped


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_nobody_sums_to_zero(
    materials: Materials, make_engine: Callable[[LanguageModel], Engine]
) -> None:
    task = AveragedGradient(materials, group_size=2)
    nobody = np.array([], dtype=np.int64)
    parameters = materials.model.initial_parameters()
    total = make_engine(materials.model)(task, parameters, nobody, NoClip(), 0)
    assert (total.num_units, total.weight, l2_norm(total.values)) == (0, 0.0, 0.0)


class OneDirtyUser(AveragedGradient):
    """User 3's update is not a number, user 4 has no examples."""

    def unit(self, key: int, round: int) -> Unit:
        unit = super().unit(key, round)
        if key != 4:
            return unit
        return Unit(key, unit.tokens[:0], unit.lengths[:0], unit.weight)

    def units(self, keys: Keys, round: int) -> list[Unit]:
        return [self.unit(key, round) for key in keys.tolist()]


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_a_user_without_examples_adds_zero_and_counts(
    materials: Materials, make_engine: Callable[[LanguageModel], Engine]
) -> None:
    task = OneDirtyUser(materials, group_size=2)
    parameters = materials.model.initial_parameters()
    engine = make_engine(materials.model)
    both = engine(task, parameters, np.array([2, 4]), NoClip(), 0)
    alone = engine(task, parameters, np.array([2]), NoClip(), 0)
    assert relative(both, alone) < 1e-6
    assert (both.num_units, alone.num_units) == (2, 1)


def layer_norms(update: Tensors) -> list[float]:
    return [
        l2_norm({name: value for name, value in update.items() if layer_of(name) == layer})
        for layer in layers_of(update)
    ]


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_units_within_the_clip_are_counted_once_whatever_they_weigh(
    materials: Materials, make_engine: Callable[[LanguageModel], Engine]
) -> None:
    """With a clip between their norms; one of the nine has no examples, and is within."""
    task = OneDirtyUser(materials, group_size=4, user_weight_cap=5)
    parameters, keys = materials.model.initial_parameters(), np.arange(9)
    units = [mean_gradient(materials.model, parameters, task.unit(key, 0)) for key in range(9)]
    norms = sorted(l2_norm(unit.values) for unit in units)
    middle = FlatClip(l2_clip_norm=(norms[3] + norms[4]) / 2)
    assert norms[0] == 0.0
    assert norms[3] < 0.999 * middle.norm < 1.001 * middle.norm < norms[4]
    layers = layers_of(parameters)
    per_layer = PerLayer.evenly(norms[-1], layers)
    each = norms[-1] / len(layers) ** 0.5
    within = sum(all(n <= each for n in layer_norms(unit.values)) for unit in units)
    assert (len(layers), 4 < within < 9) == (5, True)
    engine = make_engine(materials.model)
    for clip, expected in ((middle, 4), (per_layer, within)):
        for either in (clip, NormalisedClip(clip=clip)):
            assert engine(task, parameters, keys, either, 0).num_unclipped == expected


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_broken_parameters_give_counted_zeros_never_nan(
    materials: Materials, make_engine: Callable[[LanguageModel], Engine]
) -> None:
    parameters = materials.model.initial_parameters()
    first = next(iter(parameters))
    parameters[first] = torch.full_like(parameters[first], float("nan"))
    task = AveragedGradient(materials, group_size=2)
    clip = FlatClip(l2_clip_norm=1.0)
    total = make_engine(materials.model)(task, parameters, np.arange(5), clip, 0)
    assert total.num_non_finite == total.num_unclipped == total.num_units == 5
    assert l2_norm(total.values) == 0.0


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_under_a_tiny_bound_units_count_once(
    materials: Materials, make_engine: Callable[[LanguageModel], Engine]
) -> None:
    task = AveragedGradient(materials, group_size=2, user_weight_cap=5)
    units = [task.unit(key, 0) for key in range(5)]
    parameters, clip = materials.model.initial_parameters(), FlatClip(l2_clip_norm=1e-32)
    total = make_engine(materials.model)(task, parameters, np.arange(5), clip, 0)
    assert (total.num_units, total.num_unclipped) == (5, 0)
    assert total.weight == pytest.approx(sum(unit.weight for unit in units))
    assert total.num_gradients == sum(len(unit.sizes) for unit in units)


class OtherEnds(AveragedGradient):
    """The second half of every example is context tokens, drawn by a seed."""

    def __init__(self, materials: Materials, seed: int) -> None:
        super().__init__(materials, group_size=3, user_weight_cap=4)
        self._draw = np.random.default_rng(seed)

    def units(self, keys: Keys, round: int) -> list[Unit]:
        return [self._other(unit) for unit in super().units(keys, round)]

    def unit(self, key: int, round: int) -> Unit:
        return self.units(np.array([key]), round)[0]

    def _other(self, unit: Unit) -> Unit:
        tokens = unit.tokens.clone()
        for row, length in enumerate(unit.lengths.tolist()):
            size = length - (length + 1) // 2
            drawn = self._draw.integers(0, self.model.vocabulary_size, size)
            tokens[row, length - size : length] = ~torch.from_numpy(drawn)
        return dataclasses.replace(unit, tokens=tokens)


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_what_follows_the_last_token_that_counts_moves_nothing(
    materials: Materials, make_engine: Callable[[LanguageModel], Engine]
) -> None:
    """Neither sum nor loss nor weight: other context tokens there, and the same numbers."""
    parameters = materials.model.initial_parameters()
    engine = make_engine(materials.model)
    first, second = (
        engine(OtherEnds(materials, seed), parameters, np.arange(8), FlatClip(l2_clip_norm=0.05), 0)
        for seed in (1, 2)
    )
    assert l2_norm(first.values) > 0.0
    assert relative(first, second) < 1e-6
    assert first.loss == pytest.approx(second.loss, rel=1e-6)
    assert first.weight == second.weight
    beside = engine(
        AveragedGradient(materials, group_size=3), parameters, np.arange(8), NoClip(), 0
    )
    assert relative(first, beside) > 1e-2  # so that the ends could have moved it


def test_padding_and_batch_mates_do_not_change_a_gradient(materials: Materials) -> None:
    task = ExampleGradient(materials)
    parameters = materials.model.initial_parameters()
    unit = task.unit(0, 0)
    padded = Unit(0, torch.nn.functional.pad(unit.tokens, (0, 7)), unit.lengths)
    plain = mean_gradient(materials.model, parameters, unit)
    wide = mean_gradient(materials.model, parameters, padded)
    difference = {name: plain.values[name] - wide.values[name] for name in plain.values}
    assert l2_norm(difference) < 1e-6 * l2_norm(plain.values)


def test_users_larger_than_a_microbatch_get_the_same_mean(
    materials: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = AveragedGradient(materials, group_size=9)
    key = int(materials.split.user_sizes.argmax())
    parameters = materials.model.initial_parameters()
    whole = mean_gradient(materials.model, parameters, task.unit(key, 0))
    monkeypatch.setattr("fedsim.clients.tasks.gradients._MICROBATCH", 2)
    pieces = mean_gradient(materials.model, parameters, task.unit(key, 0))
    difference = {name: whole.values[name] - pieces.values[name] for name in whole.values}
    assert l2_norm(difference) < 1e-6 * l2_norm(whole.values)
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)


def test_one_full_batch_of_local_sgd_is_a_gradient_step(materials: Materials) -> None:
    local = LocalSGD(materials, group_size=3, batch_size=64, learning_rate=0.25)
    averaged = AveragedGradient(materials, group_size=3)
    parameters = materials.model.initial_parameters()
    update = local.update(parameters, local.unit(5, 0), 0)
    gradient = averaged.update(parameters, averaged.unit(5, 0), 0)
    difference = {
        name: update.values[name] - 0.25 * gradient.values[name] for name in gradient.values
    }
    # The difference of two float32 parameters near 1 carries 6e-8 of rounding in each entry.
    assert l2_norm(difference) < 1e-3 * l2_norm(update.values)


def test_local_sgd_takes_epochs_times_batches_steps(materials: Materials) -> None:
    key = int(materials.split.user_sizes.argmax())
    task = LocalSGD(materials, group_size=5, batch_size=2, epochs=3, learning_rate=0.05)
    unit = task.unit(key, 0)
    count = len(unit.lengths)
    parameters = materials.model.initial_parameters()
    assert task.update(parameters, unit, 0).num_gradients == 3 * count
    again = task.update(parameters, unit, 0)
    assert l2_norm(again.values) == l2_norm(task.update(parameters, unit, 0).values)
    assert l2_norm(again.values) != l2_norm(task.update(parameters, unit, 1).values)


def test_a_users_choice_depends_on_seed_round_and_user_alone(materials: Materials) -> None:
    task = AveragedGradient(materials, group_size=2)
    key = int(materials.split.user_sizes.argmax())
    chosen = [task.unit(key, round).tokens.tolist() for round in range(8)]
    assert task.unit(key, 3).tokens.tolist() == chosen[3]
    assert len({str(tokens) for tokens in chosen}) > 1
    assert all(len(tokens) == 2 for tokens in chosen)


def test_user_weights(materials: Materials) -> None:
    task = AveragedGradient(materials, group_size=2, user_weight_cap=4)
    for key, size in enumerate(materials.split.user_sizes.tolist()):
        assert task.unit(key, 0).weight == min(size / 4, 1.0)


def test_choosing(materials: Materials) -> None:
    averaged, local = (AveragedGradient(materials, group_size=1), LocalSGD(materials, group_size=1))
    assert isinstance(choose_engine("auto", local, materials.model), StackedEngine)
    assert choose_engine("loop", local, materials.model) is loop
    assert choose_engine("auto", averaged, materials.model) is not loop
    assert isinstance(choose_engine("vmap", averaged, materials.model), VmapEngine)
    with pytest.raises(ValueError, match="not a mean gradient"):
        VmapEngine(materials.model)(
            local, materials.model.initial_parameters(), np.arange(2), NoClip(), 0
        )


def test_auto_chooses_by_units_and_memory() -> None:
    million, budget = 4_000_000, 2**31
    assert choice(64, million, budget) == "materialised"
    assert choice(64, 200 * million, budget) == "ghost"  # one gradient fits, a large pass has 16
    assert choice(2048, 200 * million, budget) == "materialised"  # each unit is a large pass
    assert choice(2048, 20 * million, budget) == "materialised"


def test_auto_says_what_it_chose_once(
    materials: Materials, caplog: pytest.LogCaptureFixture
) -> None:
    task = AveragedGradient(materials, group_size=2)
    with caplog.at_level("INFO"):
        engine = choose_engine("auto", task, materials.model)
        for round in range(2):
            engine(task, materials.model.initial_parameters(), np.arange(4), NoClip(), round)
    (line,) = [record.message for record in caplog.records]
    assert "engine materialised" in line
    assert "tokens a unit" in line
