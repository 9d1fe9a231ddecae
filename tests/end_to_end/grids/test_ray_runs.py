"""Whole runs on Ray by the command line: workers killed, a node removed, a task that raises.

Runs are long enough to be disturbed because workers rest, as long as users' devices may take; what
they compute is little.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import fedsim
from fedsim.config import Config
from tests.end_to_end.grids.ray_runs import (
    LEAVINGS,
    assert_same_run,
    computing,
    plugin,
    started,
    until,
    write_config,
)
from tests.helpers.commands import fedsim as command_line
from tests.helpers.light import light_config

pytestmark = [
    *LEAVINGS,
    pytest.mark.filterwarnings("ignore:Tip. In future versions of Ray:FutureWarning"),
]

RAY = {"grid": "ray", "workers": 2, "cpus_per_worker": 0.5}

TASK = """
import dataclasses, os, pathlib, time
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.plan import TaskSpec
from fedsim.strategies import uls

class Task(AveragedGradient):
    def update(self, parameters, unit, round):
        if "BUSY" in os.environ:
            pathlib.Path(os.environ["BUSY"], str(os.getpid())).touch()
            while len(os.listdir(os.environ["BUSY"])) < 2:
                time.sleep(0.1)  # else one that starts late finds all done
            time.sleep(0.03)
        if round == 3 and pathlib.Path(os.environ["FAULT"]).exists():
            raise ArithmeticError("the disk of user %d is full of sand" % unit.key)
        return super().update(parameters, unit, round)

def build(config, materials):
    plan = uls.build(config, materials)
    return dataclasses.replace(plan, task=TaskSpec(name="faulty", options=plan.task.options))
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the task's distribution; where `fault` is there, round 3 fails."""
    folder = tmp_path_factory.mktemp("scene")
    offers = {"fedsim.strategies faulty": "faulty:build", "fedsim.tasks faulty": "faulty:Task"}
    site = plugin(folder / "site", TASK, offers)
    (folder / "busy").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("FAULT", str(folder / "fault"))
        yield folder


@pytest.fixture(scope="module")
def config(scene: Path, speeches: Path) -> Config:
    """One-user shards, one after the other: a run long enough to be disturbed."""
    return light_config(
        speeches,
        strategy={"name": "faulty", "rounds": 20, "cohort_size": 12, "group_size": 8},
        executor={"shard_size": 1, "engine": "loop"},
        training={"evaluate_every": 10, "checkpoint_every": 5},
    )


@pytest.fixture(scope="module")
def undisturbed(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In this process, which has one thread, as Ray gives a worker."""
    return fedsim.run(config, tmp_path_factory.mktemp("undisturbed") / "run").path


def rounds_of(run: Path) -> int:
    """Return how many rounds a run has behind it."""
    metrics = run / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


CLUSTER = """
import sys
from fedsim.grids.ray_cluster import import_ray
import_ray()
from ray.cluster_utils import Cluster
soon = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
head = {"num_cpus": 1, "_system_config": soon, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
node = cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.remove_node(node, allow_graceful=False)
print("removed", flush=True)
sys.stdin.readline()
cluster.shutdown()
"""


@pytest.fixture
def two_nodes(scene: Path, tmp_path: Path) -> Iterator[TwoNodes]:
    with (tmp_path / "cluster.log").open("w") as errors:
        process = psutil.Popen(
            [sys.executable, "-c", CLUSTER],
            stdin=-1,
            stdout=-1,
            stderr=errors,
            env={**os.environ, "BUSY": str(scene / "busy")},
            text=True,
            start_new_session=True,
        )
    try:
        yield TwoNodes(process, scene / "busy")
    finally:
        for child in [*process.children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):  # it ended with another one of them
                child.kill()
        process.communicate()


def _start_of_its_node(worker: psutil.Process) -> float:
    return psutil.Process(worker.ppid()).create_time()


class TwoNodes:
    """Two raylets on this machine, one core each."""

    def __init__(self, process: psutil.Popen, busy: Path) -> None:
        self._process, self._busy = process, busy
        self.address = str(process.stdout.readline()).strip()

    def workers(self) -> list[psutil.Process]:
        """Return the workers of both nodes that compute, the one of the node that stays first."""
        found = computing(self._process.pid, self._busy)
        found.sort(key=_start_of_its_node)
        return found if len(found) == 2 else []

    def remove_one(self) -> None:
        """Kill one raylet and all it started."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().strip() == "removed"


def test_a_killed_worker_and_a_removed_node_change_nothing(
    config: Config, undisturbed: Path, tmp_path: Path, two_nodes: TwoNodes
) -> None:
    """In the middle of a round, no worker is left: the same model to the bit, each release once.

    The worker of the node that went comes back on the one that stayed, or the other does all.
    """
    path = write_config(tmp_path / "config.toml", config, **RAY, address=two_nodes.address)
    run = tmp_path / "run"
    with started(tmp_path / "log", "run", path, "--out", run) as command:
        until(lambda: rounds_of(run) or not command.running, "a round")
        both = until(lambda: two_nodes.workers() or not command.running, "a worker on each node")
        assert command.running, command.log.read_text()
        both[0].send_signal(signal.SIGKILL)
        two_nodes.remove_one()
        assert command.wait() == 0, command.log.read_text()
    assert_same_run(run, undisturbed)


def test_a_task_that_raises_and_resume(
    config: Config, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round fails with the worker's traceback; what is on disk is good; --resume goes on.

    The environment names a cluster that is not there: attaching to it would fail.
    """
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    changes = {
        "strategy": config.strategy.model_copy(update={"rounds": 5, "cohort_size": 6}),
        "training": config.training.model_copy(update={"evaluate_every": 2, "checkpoint_every": 2}),
    }
    config = config.model_copy(update=changes)
    path = write_config(tmp_path / "config.toml", config, **RAY | {"workers": 1})
    fault, run = scene / "fault", tmp_path / "run"
    fault.touch()
    with pytest.raises(RuntimeError, match="round 3: a worker failed: shard") as failed:
        command_line("run", path, "--out", run)
    said = str(failed.value)
    assert "faulty.py" in said
    assert "is full of sand" in said
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "round-000002.safetensors"
    ]
    assert charged(run) == 3  # rounds 0, 1, 2: nothing of round 3 was released
    assert not (run / "report.json").exists()

    fault.unlink()
    resumed = command_line("run", path, "--out", run, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert_same_run(run, fedsim.run(config, tmp_path / "whole").path)


def charged(run: Path) -> int:
    """Return how many releases the ledger on disk has."""
    releases = json.loads((run / "ledger.json").read_text())["releases"]
    return sum(int(entry["num_rounds"]) for entry in releases)
