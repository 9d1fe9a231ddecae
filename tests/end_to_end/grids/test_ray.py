"""Runs on Ray workers: the same result, workers killed for real, errors that say what to do."""

from __future__ import annotations

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

from fedsim.clients.app import app
from fedsim.clipping import FlatClip
from fedsim.config import Config
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
from fedsim.tensors import l2_norm
from tests.conftest import small_config
from tests.end_to_end.grids.ray_runs import LEAVINGS

pytestmark = LEAVINGS

TWO = Share(workers=2, cpus=0.5, gpus=0.0)
CLIP = FlatClip(l2_clip_norm=0.1)
COHORT = np.arange(20)


@pytest.fixture(scope="module")
def grid() -> Iterator[RayGrid]:
    with RayGrid("default", TWO) as started:
        yield started


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
