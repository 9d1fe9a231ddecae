"""Runs on Ray workers: the same result, workers killed for real, errors that say what to do.

One run starts a Ray of its own; everything else shares two workers: Ray takes seconds to start.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedsim
from fedsim.clients.app import app
from fedsim.clipping import FlatClip
from fedsim.config import Config, load_config
from fedsim.data.config import DataConfig
from fedsim.errors import ConfigError
from fedsim.estimators import WeightedSum
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from fedsim.grids.records import ClientSpec
from fedsim.materials import Materials
from fedsim.plan import TaskSpec
from fedsim.runner.session import execute
from fedsim.tensors import l2_norm
from tests.conftest import small_config
from tests.end_to_end.grids.ray_runs import LEAVINGS, assert_same_run, plugin, write_config
from tests.helpers.commands import fedsim as command_line
from tests.helpers.light import EVERY_SERVER_OPTION, light_config

pytestmark = [
    *LEAVINGS,
    pytest.mark.filterwarnings("ignore:Tip. In future versions of Ray:FutureWarning"),
]

TWO = Share(workers=2, cpus=0.5, gpus=0.0)
CLIP = FlatClip(l2_clip_norm=0.1)
COHORT = np.arange(20)
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
def grid(scene: Path) -> Iterator[RayGrid]:
    """Two workers, who can see the task."""
    with RayGrid("default", TWO) as started:
        yield started


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
    config: Config, scene: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The round fails with the worker's traceback; what is on disk is good; a resume goes on.

    The environment names a cluster that is not there: attaching to it would fail. The test comes
    before all that need `grid`, as a process has one Ray at a time.
    """
    path = write_config(tmp_path / "config.toml", config, **RAY)
    fault, run = scene / "fault", tmp_path / "run"
    fault.touch()
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(RuntimeError, match="round 3: a worker failed: shard") as failed,
    ):
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")
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
    execute(load_config(path), run, request.getfixturevalue("grid"), resume=True)
    assert_same_run(run, fedsim.run(config, tmp_path / "whole").path)


def charged(run: Path) -> int:
    """Return how many releases the ledger on disk has."""
    releases = json.loads((run / "ledger.json").read_text())["releases"]
    return sum(int(entry["num_rounds"]) for entry in releases)


def client_spec(config: Config, **data: Any) -> ClientSpec:  # noqa: ANN401
    return ClientSpec(
        seed=config.seed,
        data=DataConfig.model_validate({**config.data.model_dump(), **data}),
        model=config.model,
        task=TaskSpec(name="fedsgd", options={"group_size": 2}),
        engine="auto",
        device="cpu",
    )


def undisturbed(config: Config, materials: Materials, shard_size: int) -> WeightedSum:
    executor = GridExecutor(InProcessGrid(app), client_spec(config), shard_size)
    return executor.clipped_sum(materials.model.initial_parameters(), COHORT, CLIP, 3)


def assert_same_sum(left: WeightedSum, right: WeightedSum, bits: bool) -> None:
    difference = {name: left.values[name] - right.values[name] for name in right.values}
    assert l2_norm(difference) <= (0.0 if bits else 1e-6 * l2_norm(right.values))
    assert (left.num_units, left.weight) == (right.num_units, right.weight)
    assert left.num_unclipped == right.num_unclipped


@pytest.mark.parametrize(("shard_size", "bits"), [(1, True), (3, True), (0, False)])
def test_two_workers_give_the_sum_of_one_process(
    grid: RayGrid, materials: Materials, speeches: Path, shard_size: int, bits: bool
) -> None:
    config = small_config(speeches)
    executor = GridExecutor(grid, client_spec(config), shard_size)
    total = executor.clipped_sum(materials.model.initial_parameters(), COHORT, CLIP, 3)
    assert_same_sum(total, undisturbed(config, materials, shard_size), bits)


def worker_pids(grid: RayGrid) -> list[int]:
    """Return the process ids, once all workers are back."""
    for _ in range(200):
        with suppress(grid._ray.exceptions.RayError):
            return list(grid._ray.get([worker.ready.remote() for worker in grid._workers]))
        time.sleep(0.2)
    raise AssertionError("a worker that was killed did not come back")


def test_killed_workers_change_nothing(grid: RayGrid, materials: Materials, speeches: Path) -> None:
    """SIGKILL in the middle of a round of one-user shards, twice."""
    config, parameters = small_config(speeches), materials.model.initial_parameters()
    expected = undisturbed(config, materials, 1)
    executor = GridExecutor(grid, client_spec(config), 1)
    before, done = set(worker_pids(grid)), threading.Event()
    killed: list[int] = []

    def killer() -> None:
        while len(killed) < 2 and not done.is_set():
            time.sleep(0.3)
            pid = worker_pids(grid)[len(killed) % 2]
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        rounds = 0
        while thread.is_alive() or rounds == 0:
            assert_same_sum(executor.clipped_sum(parameters, COHORT, CLIP, 3), expected, bits=True)
            rounds += 1
    finally:
        done.set()
        thread.join()
    assert len(killed) == 2
    assert before - set(worker_pids(grid))


def test_a_run_by_collectives(
    grid: RayGrid, speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    run = fedsim.Run(execute(load_config(path), tmp_path / "collective", grid))
    assert len(steps) == 4 + 1
    ours, theirs = (
        load_file(each.path / "model" / "model.safetensors") for each in (run, expected)
    )
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-3, atol=1e-5)
    assert charged(run.path) == 4
    assert len(list((run.path / "checkpoints").iterdir())) > 0


def test_what_a_worker_raises_fails_the_round_with_its_traceback(
    grid: RayGrid, materials: Materials, speeches: Path
) -> None:
    spec = client_spec(small_config(speeches), source="no-such-file.jsonl")
    executor = GridExecutor(grid, spec, 5)
    with pytest.raises(RuntimeError, match=r"(?s)a worker failed: .*clients/app\.py.*no-such-file"):
        executor.clipped_sum(materials.model.initial_parameters(), COHORT, CLIP, 0)


def test_a_second_grid_in_the_process_is_refused(grid: RayGrid) -> None:
    with pytest.raises(ConfigError, match="connected to a Ray cluster already"):
        RayGrid("default", TWO)


def run_alone(code: str, **env: str) -> str:
    """Return what a fresh process prints; Ray is started and ended in it."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=600,  # for what hangs: on a machine that is busy some starts of Ray take minutes
        check=False,
        # Sums of float32 depend on the number of threads: Ray gives a worker one.
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
