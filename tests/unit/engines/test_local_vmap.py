"""Local SGD over stacked parameters moves every user exactly as far as the loop does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from fedsim.clients.engines.clipped_sums import norm_error
from fedsim.clients.engines.cross_entropy import weighted_loss
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example.capture import NotCovered
from fedsim.clients.engines.stacked import local_vmap
from fedsim.clients.engines.stacked.local_vmap import LocalVmap, LocalVmapOrLoop
from fedsim.clients.engines.stacked.rule_steps import StackedSteps
from fedsim.clients.engines.stacked.step_batches import StepBatch
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import Clip, FlatClip, NoClip, NormalisedClip, layers_of
from fedsim.clipping import PerLayerClip as PerLayer
from fedsim.config import ModelConfig
from fedsim.estimators import WeightedSum
from fedsim.evaluation.losses import example_losses
from fedsim.execution import Accumulator, Keys, Unit
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials
from fedsim.tensors import Tensors, l2_norm
from tests.conftest import small_config

MODELS = {
    "tiny-gpt": ModelConfig(pretraining_steps=0),
    "tiny-gpt ln": ModelConfig(pretraining_steps=0, trainable="ln_"),
    "tiny-gpt lora": ModelConfig(pretraining_steps=0, lora_rank=2),
    "mcmahan-lstm": ModelConfig(name_or_path="mcmahan-lstm", pretraining_steps=0),
}
CLIPS: list[Clip] = [
    NoClip(),
    FlatClip(l2_clip_norm=0.07),  # of `materials`, above four of twelve updates
    NormalisedClip(clip=FlatClip(l2_clip_norm=0.02)),
]
EVERYBODY = np.arange(12)


@pytest.fixture(scope="module", params=list(MODELS.values()), ids=list(MODELS))
def stuff(request: pytest.FixtureRequest, speeches: object) -> Iterator[Materials]:
    config = small_config(str(speeches))  # type: ignore[arg-type]
    yield load_materials(0, config.data, request.param, "cpu")


def local_sgd(materials: Materials, **settings: int | float | None) -> LocalSGD:
    """Users with 2, 4 or 5 examples: 2, 4 or 6 steps, some passes ending in a short batch."""
    usual = {"group_size": 5, "batch_size": 2, "epochs": 2, "learning_rate": 0.1}
    return LocalSGD(materials, **(usual | settings))  # type: ignore[arg-type]


def assert_equal(total: WeightedSum, expected: WeightedSum, tolerance: float) -> None:
    difference = {name: total.values[name] - expected.values[name] for name in expected.values}
    assert l2_norm(difference) <= tolerance * l2_norm(expected.values)
    assert total.num_units == expected.num_units
    assert total.num_gradients == expected.num_gradients
    assert total.num_non_finite == expected.num_non_finite
    assert total.num_unclipped == expected.num_unclipped
    assert total.weight == pytest.approx(expected.weight, rel=1e-12)
    assert total.loss == pytest.approx(expected.loss, rel=max(tolerance, 1e-12))


def looped(
    task: LocalSGD, parameters: Tensors, keys: Keys, clips: Sequence[Clip], round: int
) -> list[WeightedSum]:
    """Return the loop's sum under every clip, with the engine's margin; users train once."""
    units = [task.unit(int(key), round) for key in keys]
    updates = [(task.update(parameters, unit, round), unit.weight) for unit in units]
    sums = []
    for clip in clips:
        accumulator = Accumulator(parameters, clip, norm_error=norm_error(parameters))
        for update, weight in updates:
            accumulator.add(update, weight)
        sums.append(accumulator.total())
    return sums


def by_loop_with_margin(task: LocalSGD, parameters: Tensors, clip: Clip) -> WeightedSum:
    return loop(task, parameters, EVERYBODY, clip, 0, norm_error=norm_error(parameters))


def every_clip(parameters: Tensors) -> list[Clip]:
    return [*CLIPS, PerLayer.evenly(0.02, layers_of(parameters))]


def ragged(materials: Materials) -> LocalSGD:
    """Users with all of their examples, 1 to 9."""
    return local_sgd(materials, group_size=9, user_weight_cap=5)


@pytest.fixture(scope="module")
def by_loop(stuff: Materials) -> list[WeightedSum]:
    task, parameters = ragged(stuff), stuff.model.initial_parameters()
    return looped(task, parameters, EVERYBODY[:8], every_clip(parameters), 3)


@pytest.mark.parametrize("by", ["rules", "vmap"])
def test_it_equals_the_loop_for_ragged_users_and_every_clip(
    stuff: Materials, by_loop: list[WeightedSum], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "vmap":
        monkeypatch.setattr(LocalVmap, "_prepare", lambda *_: None)
    task = ragged(stuff)
    parameters = stuff.model.initial_parameters()
    assert len({len(task.unit(int(key), 0).lengths) for key in EVERYBODY}) > 3
    engine = LocalVmap(stuff.model)
    keys = EVERYBODY[:8]
    for clip, expected in zip(every_clip(parameters), by_loop, strict=True):
        assert_equal(engine(task, parameters, keys, clip, 3), expected, 1e-5)
    assert (engine._by_rules is not None) == (by == "rules")


def test_no_users_text_decides_how_everybodys_steps_are_taken(
    materials: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules are verified on a made-up unit, the same whoever is in the cohort."""
    verified: list[Unit] = []
    honest = StackedSteps.verify

    def noted(self: StackedSteps, parameters: Tensors, unit: Unit) -> None:
        verified.append(unit)
        honest(self, parameters, unit)

    monkeypatch.setattr(StackedSteps, "verify", noted)
    task, parameters = local_sgd(materials), materials.model.initial_parameters()
    for keys in (EVERYBODY[:2], EVERYBODY[5:7]):
        engine = LocalVmap(materials.model)
        engine(task, parameters, keys, NoClip(), 0)
        assert engine._by_rules is not None
    first, second = verified
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.lengths, second.lengths)


def in_float64(materials: Materials) -> dict[str, torch.Tensor]:
    """Turn the whole network to float64 and return its parameters."""
    assert isinstance(materials.model, TransformersModel)
    materials.model.module.double()
    return {name: v.double() for name, v in materials.model.initial_parameters().items()}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_in_float64_only_the_order_of_sums_differs(model: ModelConfig, speeches: object) -> None:
    config = small_config(str(speeches))  # type: ignore[arg-type]
    materials = load_materials(0, config.data, model, "cpu")
    parameters = in_float64(materials)
    task = local_sgd(materials)
    keys = EVERYBODY[:6]
    engine, expected_sums = LocalVmap(materials.model), looped(task, parameters, keys, CLIPS, 0)
    for clip, expected in zip(CLIPS, expected_sums, strict=True):
        assert_equal(engine(task, parameters, keys, clip, 0), expected, 1e-10)


@pytest.mark.parametrize("settings", [{"batch_size": 1}, {"batch_size": 4, "epochs": 3}])
def test_other_batches(materials: Materials, settings: dict[str, int]) -> None:
    task = local_sgd(materials, **settings)
    parameters = materials.model.initial_parameters()
    total = LocalVmap(materials.model)(task, parameters, EVERYBODY, NoClip(), 1)
    assert_equal(total, loop(task, parameters, EVERYBODY, NoClip(), 1), 1e-5)


def test_how_many_at_once_changes_nothing_but_rounding(materials: Materials) -> None:
    task = local_sgd(materials)
    parameters = materials.model.initial_parameters()
    size = sum(value.nbytes for value in parameters.values())
    together = LocalVmap(materials.model)(task, parameters, EVERYBODY, CLIPS[1], 0)
    assert (together.num_unclipped, together.num_units) == (4, 12)
    few = LocalVmap(materials.model, num_bytes=2 * 3 * 4 * size)
    assert_equal(few(task, parameters, EVERYBODY, CLIPS[1], 0), together, 1e-6)
    parts = [few(task, parameters, keys, CLIPS[1], 0) for keys in np.split(EVERYBODY, 3)]
    assert_equal(parts[0] + parts[1] + parts[2], together, 1e-6)


def test_large_steps_are_taken_alone(materials: Materials, monkeypatch: pytest.MonkeyPatch) -> None:
    task = local_sgd(materials)
    parameters = materials.model.initial_parameters()
    monkeypatch.setattr(local_vmap, "_LARGE_STEP", 30)
    total = LocalVmap(materials.model)(task, parameters, EVERYBODY, CLIPS[1], 0)
    assert_equal(total, by_loop_with_margin(task, parameters, CLIPS[1]), 1e-5)


class SomeEmpty(LocalSGD):
    """Users 4 and 5 have no examples."""

    def unit(self, key: int, round: int) -> Unit:
        unit = super().unit(key, round)
        if key not in (4, 5):
            return unit
        return Unit(key, unit.tokens[:0], unit.lengths[:0], unit.weight)

    def units(self, keys: Keys, round: int) -> list[Unit]:
        return [self.unit(key, round) for key in keys.tolist()]


def test_users_without_examples_add_zero_and_count(materials: Materials) -> None:
    task = SomeEmpty(materials, group_size=9, batch_size=2)
    parameters = materials.model.initial_parameters()
    engine = LocalVmap(materials.model)
    total = engine(task, parameters, EVERYBODY, CLIPS[1], 0)
    assert_equal(total, by_loop_with_margin(task, parameters, CLIPS[1]), 1e-5)
    empty = engine(task, parameters, np.array([4, 5]), CLIPS[1], 0)
    assert (empty.num_units, empty.num_gradients, l2_norm(empty.values)) == (2, 0, 0.0)
    nobody = engine(task, parameters, EVERYBODY[:0], CLIPS[1], 0)
    assert (nobody.num_units, l2_norm(nobody.values)) == (0, 0.0)


def test_broken_parameters_give_counted_zeros_never_nan(materials: Materials) -> None:
    parameters = materials.model.initial_parameters()
    first = next(iter(parameters))
    parameters[first] = torch.full_like(parameters[first], float("nan"))
    total = LocalVmap(materials.model)(
        local_sgd(materials), parameters, EVERYBODY, FlatClip(l2_clip_norm=1.0), 0
    )
    assert total.num_non_finite == total.num_units == len(EVERYBODY)
    assert l2_norm(total.values) == 0.0


def test_users_that_diverge_do_not_touch_those_that_stop_in_time(materials: Materials) -> None:
    # The first step goes very far, and the second from there is not a number.
    task = local_sgd(materials, epochs=1, learning_rate=1e20)
    parameters = materials.model.initial_parameters()
    clip = FlatClip(l2_clip_norm=1.0)
    total = LocalVmap(materials.model)(task, parameters, EVERYBODY, clip, 0)
    assert 0 < total.num_non_finite < len(EVERYBODY)
    assert_equal(total, by_loop_with_margin(task, parameters, clip), 1e-5)


def test_out_of_memory_halves_the_stack_and_counts_nobody_twice(
    materials: Materials, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = local_sgd(materials)
    parameters = materials.model.initial_parameters()
    expected = by_loop_with_margin(task, parameters, CLIPS[1])
    engine, widths = LocalVmap(materials.model), []
    step = LocalVmap._step

    def scarce(
        self: LocalVmap,
        stack: dict[str, torch.Tensor],
        parameters: Tensors,
        batch: StepBatch,
        learning_rate: float,
        *,
        first: bool,
    ) -> torch.Tensor:
        widths.append(len(next(iter(stack.values()))))
        if widths[-1] > 3 and not first:  # some steps were taken
            raise torch.OutOfMemoryError("no more")
        return step(self, stack, parameters, batch, learning_rate, first=first)

    monkeypatch.setattr(LocalVmap, "_step", scarce)
    assert_equal(engine(task, parameters, EVERYBODY, CLIPS[1], 0), expected, 1e-5)
    assert "from now on at most 3" in caplog.text
    widths.clear()
    engine(task, parameters, EVERYBODY, CLIPS[1], 1)
    assert max(widths) == 3


def test_other_tasks_are_refused_or_go_to_the_loop(materials: Materials) -> None:
    task = AveragedGradient(materials, group_size=2)
    parameters = materials.model.initial_parameters()
    with pytest.raises(ValueError, match="AveragedGradient: it is no local SGD"):
        LocalVmap(materials.model)(task, parameters, EVERYBODY, NoClip(), 0)
    total = LocalVmapOrLoop(materials.model)(task, parameters, EVERYBODY, NoClip(), 0)
    assert_equal(total, loop(task, parameters, EVERYBODY, NoClip(), 0), 0.0)


def test_what_torch_cannot_vectorise_goes_to_the_loop_with_one_warning(
    materials: Materials, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logits = type(materials.model).logits

    def looks_at_values(
        self: LanguageModel, parameters: Tensors, tokens: torch.Tensor
    ) -> torch.Tensor:
        assert int(tokens.sum()) >= 0
        return logits(self, parameters, tokens)

    def no_rule(model: object) -> None:
        raise NotCovered("some layer")

    monkeypatch.setattr(type(materials.model), "logits", looks_at_values)
    monkeypatch.setattr(local_vmap, "StackedSteps", no_rule)
    task = local_sgd(materials)
    parameters = materials.model.initial_parameters()
    expected = loop(task, parameters, EVERYBODY, NoClip(), 0)
    engine = LocalVmapOrLoop(materials.model)
    for _ in range(2):
        assert_equal(engine(task, parameters, EVERYBODY, NoClip(), 0), expected, 0.0)
    (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "vmap cannot, computing by loop" in record.message


def test_the_loss_is_that_of_the_examples_and_so_is_its_gradient() -> None:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 11, (4, 6), generator=generator)
    lengths = torch.tensor([6, 3, 1, 4])
    weights = torch.tensor([0.5, 0.25, 1.0, 0.0], dtype=torch.float64)
    logits = torch.randn(4, 6, 11, dtype=torch.float64, generator=generator) * 300
    logits.requires_grad_()
    expected = (example_losses(logits, tokens, lengths) * weights).sum()
    computed = weighted_loss(logits, tokens, lengths, weights)
    torch.testing.assert_close(computed, expected)
    for left, right in zip(
        torch.autograd.grad(2 * computed, logits),
        torch.autograd.grad(2 * expected, logits),
        strict=True,
    ):
        torch.testing.assert_close(left, right)
