"""Local training: `loop` takes torch's steps, and `stacked` computes what `loop` does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.stacked import engine as stacked
from fedsim.clients.tasks.fedavg import LocalSGD, local_steps
from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.clipping import NoClip, PerLayerClip, layers_of
from fedsim.config import ModelConfig
from fedsim.data.split import Split
from fedsim.data.store import TokenStore
from fedsim.execution import Keys, Unit, Update
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials
from fedsim.tensors import Tensors
from tests.conftest import Log, Patch
from tests.contracts.layer_samples import (
    EXPERTS,
    NETWORKS,
    ROUNDS_INSIDE,
    gpt2,
    network,
    opened,
    ragged_units,
    relative,
)

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum": {"momentum": 0.9},
    "proximal": {"proximal": 2.0},
    "linear": {"schedule": "linear"},
    "all": {"momentum": 0.5, "proximal": 1.0, "schedule": "linear"},
}


ALONE = {"opt", "falcon"}  # over a stack their layers give something else, which is noticed


class GivenLocalSGD(LocalSGD):
    """Local training of given units: steps of two examples, in two passes."""

    def __init__(self, model: LanguageModel, units: list[Unit], rate: float, **how: Any) -> None:  # noqa: ANN401
        texts = cast(TokenStore, None), cast(Split, None)
        materials = Materials(model, *texts, seed=0)
        super().__init__(materials, group_size=9, epochs=2, batch_size=2, learning_rate=rate, **how)
        self.given = {
            unit.key: replace(unit, streams=torch.arange(len(unit.lengths)) + (unit.key << 32))
            for unit in units
        }

    def unit(self, key: int, round: int) -> Unit:
        return self.given[key]

    def units(self, keys: Keys, round: int) -> list[Unit]:
        return [self.given[key] for key in keys.tolist()]

    @property
    def keys(self) -> Keys:
        return np.array(list(self.given))


@pytest.mark.parametrize("way", WAYS)
def test_steps_are_those_of_torch(way: str) -> None:
    model, parameters = network("gpt2 tied", torch.float64)
    task = GivenLocalSGD(model, [ragged_units()[3]], 0.3, **WAYS[way])
    unit = task.unit(3, 0)
    batches = list(task.batches(unit, 0))
    local, _ = local_steps(model, parameters, unit, batches, task.steps)
    values = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    how = task.steps
    optimizer = torch.optim.SGD(values.values(), lr=0.3, momentum=how.momentum)
    for step, rows in enumerate(batches):
        batch = Unit(3, unit.tokens[rows], unit.lengths[rows])
        found = mean_gradient(model, {k: v.detach() for k, v in values.items()}, batch).values
        for name, value in values.items():
            value.grad = found[name] + how.proximal * (value.detach() - parameters[name])
        if how.schedule == "linear":
            optimizer.param_groups[0]["lr"] = 0.3 * (len(batches) - step) / len(batches)
        optimizer.step()
    assert len(batches) == 4
    for name, value in values.items():
        torch.testing.assert_close(local[name], value.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "way"), [*((name, "all") for name in NETWORKS), *(("gpt2 tied", way) for way in WAYS)]
)
def test_stacked_computes_what_loop_does(
    name: str, way: str, monkeypatch: Patch, caplog: Log
) -> None:
    """With more users than places, and users of no, few and many steps."""
    model, parameters = network(name, torch.float64)
    monkeypatch.setattr(model, "initial_parameters", lambda: parameters)  # in float64
    monkeypatch.setattr(stacked, "CPU_USERS", 2)
    task = GivenLocalSGD(model, ragged_units(), 0.1, **WAYS[way])
    with caplog.at_level("INFO"):
        engine = choose_engine("auto", task, model)
    if name in ALONE:
        assert engine is loop
        assert "engine loop; not side by side" in caplog.text
        return
    assert isinstance(engine, stacked.StackedEngine), caplog.text
    clips = NoClip(), PerLayerClip.evenly(0.01, layers_of(parameters))
    for clip in clips:
        total, expected = (each(task, parameters, task.keys, clip, 0) for each in (engine, loop))
        assert relative(total, expected) < (1e-4 if name in ROUNDS_INSIDE else 1e-9)
        assert total.loss == pytest.approx(expected.loss, rel=1e-5)
        for count in ("num_units", "num_gradients", "num_unclipped", "num_non_finite", "weight"):
            assert getattr(total, count) == getattr(expected, count)


def test_dropout_is_that_of_loop() -> None:
    model = opened(gpt2(), ModelConfig(dropout=0.3))
    task = GivenLocalSGD(model, ragged_units(), 0.1)
    parameters = model.initial_parameters()
    total, expected = (
        choose_engine(engine, task, model)(task, parameters, task.keys, NoClip(), 0)
        for engine in ("auto", "loop")
    )
    assert relative(total, expected) < 1e-4


@pytest.mark.parametrize("name", [*EXPERTS])
def test_experts_are_computed_alone(name: str, caplog: Log) -> None:
    model, _ = network(name, torch.float32)
    with caplog.at_level("INFO"):
        assert choose_engine("auto", GivenLocalSGD(model, [], 0.1), model) is loop
    assert "engine loop; not side by side: a token's choice of experts" in caplog.text


class OfAPlugIn(GivenLocalSGD):
    """Local training with other steps."""

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        return Update(parameters, loss=0.0, num_gradients=0)


def test_a_plug_ins_own_steps_are_its_own() -> None:
    model, _ = network("gpt2 tied", torch.float32)
    assert choose_engine("auto", OfAPlugIn(model, [], 0.1), model) is loop
