"""The study of a round's seconds: its floor computes the gradients, its parts add up."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsim.clients.engines.loop import loop
from fedsim.clipping import FlatClip
from fedsim.execution import Task
from fedsim.experiments.studies.chua_2024.overhead import Measured, count, rows
from fedsim.experiments.studies.chua_2024.round_stages import Stages, batches, parts, plain_gradient
from fedsim.materials import Materials
from fedsim.registry import resolve

STAGES = Stages(
    floor=1.0,
    engine=1.5,
    executor=1.75,
    release=0.25,
    step=0.125,
    charge=0.0625,
    budget=0.1875,
    whole=2.25,
)


@pytest.mark.parametrize("batch_size", [3, 64])
def test_the_floor_is_the_engines_sum_without_a_clip(materials: Materials, batch_size: int) -> None:
    """Over users with one to three examples of unlike lengths, however they are batched."""
    task: Task = resolve("tasks", "fedsgd", "task")(materials, group_size=3)
    users = np.arange(materials.split.num_users)
    start = materials.model.initial_parameters()
    units = task.units(users, 0)
    assert len({len(unit.lengths) for unit in units}) > 1
    plain = plain_gradient(materials.model, start, units, batch_size)
    private = loop(task, start, users, FlatClip(l2_clip_norm=1e9), 0)
    assert private.num_gradients == sum(len(unit.lengths) for unit in units)
    for name, value in private.values.items():
        assert torch.allclose(plain[name].double(), value, rtol=1e-4, atol=1e-6)


def test_batches_hold_every_token_once(materials: Materials) -> None:
    task: Task = resolve("tasks", "fedsgd", "task")(materials, group_size=3)
    units = task.units(np.arange(materials.split.num_users), 0)
    made = [*batches(units, 8)]
    assert sum(float(weights.sum()) for *_, weights in made) == pytest.approx(len(units))
    for tokens, lengths, _ in made:
        assert tokens.shape == (len(lengths), int(lengths.max()))
        assert all((row[length:] == 0).all() for row, length in zip(tokens, lengths, strict=True))
    found = sum(int(tokens.sum()) for tokens, *_ in made)
    assert found == sum(int(unit.tokens.sum()) for unit in units)


def test_parts_are_differences_and_add_up() -> None:
    split = parts(STAGES)
    assert split == (1.0, 0.5, 0.25, 0.25, 0.125, 0.25)
    assert split.total == 2.375
    assert split.non_private == 1.125
    assert split.ratio == 2.375 / 1.125


def test_rows_and_counts_are_of_the_mean_round() -> None:
    slower = Stages(*(3.0 * seconds for seconds in STAGES))
    measured = [Measured("uls", "terms", [STAGES, slower], [4, 6], [8, 10])]
    by_part = {row["part"]: row for row in rows(measured)}
    assert by_part["clipping"]["seconds"] == 1.0
    assert by_part["total"] == {
        "strategy": "uls",
        "part": "total",
        "seconds": 4.75,
        "least": 2.375,
        "most": 7.125,
        "share": 1.0,
        "ratio_to_floor": 2.375,
        "units": 5.0,
        "gradients": 9.0,
    }
    assert count(measured[0]) == (
        "ULS: a private round takes 2.11 times the 2.25 s of gradients and step, by the sum "
        "of its parts. The whole round, timed at once, takes 4.5 s."
    )
