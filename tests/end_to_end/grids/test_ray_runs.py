"""A whole run on Ray by the command line: a task that raises, and --resume."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedsim
from fedsim.config import Config
from fedsim.grids.ray_grid import RayGrid
from tests.end_to_end.grids.ray_runs import LEAVINGS, assert_same_run, plugin, write_config
from tests.helpers.commands import fedsim as command_line
from tests.helpers.light import EVERY_SERVER_OPTION, light_config

pytestmark = [
    *LEAVINGS,
    pytest.mark.filterwarnings("ignore:Tip. In future versions of Ray:FutureWarning"),
]

RAY = {"grid": "ray", "workers": 1, "cpus_per_worker": 0.5}

TASK = """
import dataclasses, os, pathlib
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.plan import TaskSpec
from fedsim.strategies.uls import UserLevelSampling

class Task(AveragedGradient):
    def update(self, parameters, unit, round):
        if round == 3 and pathlib.Path(os.environ["FAULT"]).exists():
            raise ArithmeticError("the disk of user %d is full of sand" % unit.key)
        return super().update(parameters, unit, round)

class Faulty(UserLevelSampling):
    @staticmethod
    def build(config, materials):
        plan = UserLevelSampling.build(config, materials)
        return dataclasses.replace(plan, task=TaskSpec(name="faulty", options=plan.task.options))
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the task's distribution; where `fault` is there, round 3 fails."""
    folder = tmp_path_factory.mktemp("scene")
    offers = {"fedsim.strategies faulty": "faulty:Faulty", "fedsim.tasks faulty": "faulty:Task"}
    site = plugin(folder / "site", TASK, offers)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("FAULT", str(folder / "fault"))
        yield folder


@pytest.fixture(scope="module")
def config(scene: Path, speeches: Path) -> Config:
    return light_config(
        speeches,
        strategy={"name": "faulty", "rounds": 5, "cohort_size": 6, "group_size": 8},
        server=EVERY_SERVER_OPTION,
        executor={"shard_size": 1, "engine": "loop"},
        training={"evaluate_every": 2, "checkpoint_every": 2},
    )


def test_a_task_that_raises_and_resume(
    config: Config, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round fails with the worker's traceback; what is on disk is good; --resume goes on.

    The environment names a cluster that is not there: attaching to it would fail.
    """
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    path = write_config(tmp_path / "config.toml", config, **RAY)
    fault, run = scene / "fault", tmp_path / "run"
    fault.touch()
    with pytest.raises(RuntimeError, match="round 3: a worker failed: shard") as failed:
        command_line("run", path, "--out", run)
    said = str(failed.value)
    assert "faulty.py" in said
    assert "is full of sand" in said
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "round-000002.safetensors",
        "round-000003.safetensors",  # kept as the error ended the run
    ]
    assert charged(run) == 3  # rounds 0, 1, 2: nothing of round 3 was released
    assert not (run / "report.json").exists()

    fault.unlink()
    resumed = command_line("run", path, "--out", run, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert_same_run(run, fedsim.run(config, tmp_path / "whole").path)


def test_a_run_by_collectives(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is killed before it steps in the third round; model and charges are as without."""
    config = light_config(
        speeches, strategy={"rounds": 4, "cohort_size": 6}, server=EVERY_SERVER_OPTION
    )
    expected = fedsim.run(config, tmp_path / "central")
    together, steps = RayGrid.together, []

    def killing(grid: RayGrid, calls: list[Any], *options: Any, **others: Any) -> list[Any]:  # noqa: ANN401
        if calls[0][1:3] == ("member", "step"):
            steps.append(grid)
            if len(steps) == 3:
                pid = grid._ray.get(grid._workers[1].ready.remote())
                os.kill(pid, signal.SIGKILL)
        return together(grid, calls, *options, **others)

    monkeypatch.setattr(RayGrid, "together", killing)
    path = write_config(
        tmp_path / "config.toml", config, **{**RAY, "workers": 2, "reduce": "collective"}
    )
    run = fedsim.run(path, tmp_path / "collective")
    assert len(steps) == 4 + 1
    ours, theirs = (
        load_file(each.path / "model" / "model.safetensors") for each in (run, expected)
    )
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-5)
    assert charged(run.path) == 4
    assert len(list((run.path / "checkpoints").iterdir())) > 0


def charged(run: Path) -> int:
    """Return how many releases the ledger on disk has."""
    releases = json.loads((run / "ledger.json").read_text())["releases"]
    return sum(int(entry["num_rounds"]) for entry in releases)
