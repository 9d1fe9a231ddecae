"""Clipped sums of `loop` as they were before the redesign of November 2026: three strategies.

Every user and example takes part and local training has one batch a pass, so no draw is in them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.clients.engines.loop import loop
from fedsim.clients.tasks.example_gradient import ExampleGradient
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import Clip, FlatClip, PerLayerClip, layers_of
from fedsim.execution import Task
from fedsim.materials import Materials, load_materials
from tests.conftest import small_config

ALL = 1000  # more examples than a user has

# (sum of weights, loss, norm of the sum, the sum along a fixed direction)
FROZEN = {
    "uls": (24.0, 182.3944993019104, 2.710663374493158, 0.204928142814355),
    "els": (162.0, 1231.136800289154, 18.14713141497718, 1.6966831808798681),
    "fedavg": (24.0, 182.39449834823608, 2.693605148107098, 0.13419163611374546),
    "uls per layer": (24.0, 182.3944993019104, 2.684404742904929, 0.2100151820929423),
}


@pytest.fixture(scope="module")
def frozen_materials(speeches: Path) -> Materials:
    config = small_config(
        speeches, data={"held_out_examples": 0.0}, model={"trainable": r"ln_|attn|wpe"}
    )
    return load_materials(config.seed, config.data, config.model, "cpu")


@pytest.mark.parametrize("name", FROZEN)
def test_loops_sum_is_as_it_was(name: str, frozen_materials: Materials) -> None:
    materials = frozen_materials
    generator = torch.Generator().manual_seed(0)
    parameters = {
        key: 0.05 * torch.randn(value.shape, generator=generator)
        for key, value in sorted(materials.model.initial_parameters().items())
    }
    tasks: dict[str, Task] = {
        "els": ExampleGradient(materials),
        "fedavg": LocalSGD(materials, group_size=ALL, epochs=2, batch_size=ALL, learning_rate=0.5),
    }
    task = tasks.get(name, AveragedGradient(materials, group_size=ALL))
    count = materials.store.num_examples if name == "els" else materials.store.num_users
    clip: Clip = FlatClip(l2_clip_norm=0.5)
    if name == "uls per layer":
        clip = PerLayerClip.evenly(0.5, layers_of(parameters))
    total = loop(task, parameters, np.arange(count), clip, 0)
    flat = torch.cat([total.values[key].double().flatten() for key in sorted(total.values)])
    along = torch.cos(torch.arange(len(flat), dtype=torch.float64)) @ flat
    found = (total.weight, total.loss, float(flat.norm()), float(along))
    assert found == pytest.approx(FROZEN[name], rel=5e-6, abs=5e-6 * float(flat.norm()))
