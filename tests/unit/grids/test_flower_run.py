"""What Flower's answers mean, which runs are refused beforehand, and how nodes are waited for."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from flwr.cli.config_utils import load_and_validate

from fedsim.clients.app import app as client_app
from fedsim.config import ExecutorConfig
from fedsim.errors import BudgetSpentError, ConfigError, SharedBudgetSpentError
from fedsim.grids import flower_run
from fedsim.grids.executor import wait_for_nodes
from fedsim.grids.flower_command import (
    FlowerCommandError,
    RunStatus,
    environment,
    parse_run_id,
    parse_status,
)
from fedsim.grids.flower_run import (
    FlowerRun,
    FlowerRunError,
    _raise_what_went_wrong,
    _resources,
    run_on_superlink,
)
from fedsim.grids.in_process import InProcessGrid
from fedsim.registry import resolve
from tests.conftest import small_config
from tests.helpers.commands import fedsim

APP = Path(__file__).parents[3] / "experiments" / "flower_app"


def answer(status: str, details: str = "N/A") -> str:
    """Return what Flower 1.41 prints for one run, less the keys that nobody reads."""
    run = {"run-id": "17", "status": status, "status-details": details}
    return json.dumps({"success": True, "runs": [run]})


@pytest.mark.parametrize(
    ("status", "finished", "completed"),
    [
        ("pending", False, False),
        ("running", False, False),
        ("finished:completed", True, True),
        ("finished:failed", True, False),
        ("finished:stopped", True, False),
    ],
)
def test_a_run_is_done_only_when_it_completed(status: str, finished: bool, completed: bool) -> None:
    read = parse_status(answer(status))
    assert (read.finished, read.completed, read.details) == (finished, completed, "")


@pytest.mark.parametrize("parse", [parse_status, parse_run_id])
@pytest.mark.parametrize(
    "text",
    [
        '{"success": false, "error-message": "Run 17 not found"}',
        '{"success": true, "runs": [], "run-id": null}',
        "Traceback (most recent call last):",
        "",
        "[]",
    ],
)
def test_an_answer_that_is_none_is_an_error(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(FlowerCommandError):
        parse(text)


@pytest.mark.parametrize("kind", [ConfigError, BudgetSpentError, SharedBudgetSpentError])
def test_the_apps_own_errors_come_through_as_they_were(kind: type[Exception]) -> None:
    """Told by the traceback: Flower hands on the words alone."""
    status = RunStatus("finished", "failed", "Simulation failed with exception: two\nlines")
    log = f"Traceback (most recent call last):\n  ...\nfedsim.errors.{kind.__name__}: two\nlines\n"
    with pytest.raises(kind, match=r"^two\nlines$"):
        _raise_what_went_wrong(status, log)


def test_other_failures_say_what_flower_says_and_how_the_log_ends() -> None:
    """A worker's ConfigError inside another error is not the run's."""
    words = "round 1: a worker failed: fedsim.errors.ConfigError: x"
    status = RunStatus("finished", "failed", f"ServerApp failed with exception: {words}")
    with pytest.raises(FlowerRunError, match=r"(?s)the run failed: ServerApp.*worker.*last line"):
        _raise_what_went_wrong(status, f"RuntimeError: {words}\nlast line")
    with pytest.raises(FlowerRunError, match="the run stopped: no reason given"):
        _raise_what_went_wrong(RunStatus("finished", "stopped"), "")
    _raise_what_went_wrong(RunStatus("finished", "completed"), "fedsim.errors.ConfigError: ")


def test_the_environment_is_set_and_one_thread_is_only_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    first = environment(tmp_path)
    assert first["FLWR_HOME"] == str(tmp_path)
    assert first["FLWR_TELEMETRY_ENABLED"] == "0"
    assert first["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert first["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert first["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment(tmp_path)["OMP_NUM_THREADS"] == "3"


def test_workers_that_do_not_fit_are_refused() -> None:
    """Flower's engine would wait for them without end."""
    cores = os.cpu_count() or 1
    with pytest.raises(ConfigError, match=f"executor.workers = {cores + 1}, .*this machine has"):
        _resources(cores + 1, ExecutorConfig())
    with pytest.raises(ConfigError, match=r"executor.gpus_per_worker = 64: needs 64"):
        _resources(1, ExecutorConfig(gpus_per_worker=64.0))
    small = ExecutorConfig(cpus_per_worker=0.5)
    assert _resources(2 * cores, small) == {
        "num-supernodes": 2 * cores,
        "client-resources-num-cpus": 1,
        "init-args-num-cpus": 2 * cores,
    }


def test_no_superlink_at_the_address(tmp_path: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        run = FlowerRun(tmp_path / "c.toml", tmp_path / "out", resume=False, workers=1)
        with pytest.raises(ConfigError, match=f"--superlink {address}: no SuperLink there"):
            run_on_superlink(run, address, print)
    with pytest.raises(ConfigError, match="give host:port"):
        run_on_superlink(run, "nonsense", print)


@pytest.mark.parametrize(
    ("source", "options", "complaint"),
    [
        ("x.jsonl", ["--workers", "0"], "--workers"),
        ("x.jsonl", ["--out", "taken"], "--out taken: holds files, and nothing to take up"),
        ("x.jsonl", ["--superlink", "127.0.0.1:1"], "data.source = 'x.jsonl': on a SuperLink"),
    ],
)
def test_wrong_input_is_found_before_anything_starts(
    tmp_path: Path, source: str, options: list[str], complaint: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    (tmp_path / source).touch()
    (tmp_path / "c.toml").write_text(small_config(Path(source)).to_toml(), encoding="utf-8")
    done = fedsim("flower", "c.toml", "--out", "new", *options, folder=tmp_path)
    assert complaint in done.complaint
    assert not (tmp_path / "new").exists()


def test_a_run_that_failed_has_status_1_and_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*_: object) -> None:
        raise FlowerRunError("the run failed: ServerApp failed")

    monkeypatch.setattr(flower_run, "run_on_superlink", failed)
    (tmp_path / "c.toml").write_text(small_config(tmp_path).to_toml(), encoding="utf-8")
    done = fedsim("flower", "c.toml", "--superlink", "127.0.0.1:1", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("Failed: the run failed: ServerApp failed\n")


def test_the_app_folder_is_one_that_flower_takes_and_that_is_shipped() -> None:
    config, warnings = load_and_validate(APP / "pyproject.toml")
    assert not warnings
    named = set(config["tool"]["flwr"]["app"]["config"])
    run = FlowerRun(Path("c.toml"), Path("out"), resume=False, workers=1)
    assert set(run.settings()) == named
    assert resolve("flower_apps", "default", "test").__name__ == "fedsim.experiments.flower_app"


class LateGrid(InProcessGrid):
    """A grid whose nodes connect one a question."""

    def __init__(self) -> None:
        super().__init__(client_app)
        self.asked = 0

    def get_node_ids(self) -> list[int]:
        self.asked += 1
        return list(range(self.asked - 1, 0, -1))


def test_nodes_are_waited_for() -> None:
    assert wait_for_nodes(LateGrid(), 3) == [1, 2, 3]
    with pytest.raises(RuntimeError, match="1 of 9 nodes connected within 0 s"):
        late = LateGrid()
        late.asked = 1
        wait_for_nodes(late, 9, patience=0.0)
