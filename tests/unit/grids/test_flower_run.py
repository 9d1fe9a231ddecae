"""`fedsim flower` without Flower's processes: refusals, errors, and nodes that are waited for."""

from __future__ import annotations

import os
import runpy
import shutil
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.config_utils import load_and_validate

from fedsim.clients.app import app as client_app
from fedsim.config import ExecutorConfig
from fedsim.errors import BudgetSpentError, ConfigError, SharedBudgetSpentError
from fedsim.grids import flower_run
from fedsim.grids.executor import wait_for_nodes
from fedsim.grids.flower_run import FlowerRunError, _error, environment, run_on_flower
from fedsim.grids.in_process import InProcessGrid
from fedsim.registry import resolve
from fedsim.report.schema import load_report
from fedsim.runner import server_app
from tests.conftest import small_config
from tests.helpers.commands import fedsim
from tests.helpers.light import light_config

APP = Path(__file__).parents[3] / "experiments" / "flower_app"


@pytest.mark.parametrize("kind", [ConfigError, BudgetSpentError, SharedBudgetSpentError])
def test_the_apps_own_errors_keep_their_type(kind: type[Exception]) -> None:
    log = f"Traceback (most recent call last):\n  ...\nfedsim.errors.{kind.__name__}: two\nlines\n"
    error = _error("Simulation failed with exception: two\nlines", log)
    assert (type(error), str(error)) == (kind, "two\nlines")


def test_other_failures_have_flowers_words_and_the_end_of_the_log() -> None:
    """A worker's ConfigError inside another error is not the run's."""
    words = "round 1: a worker failed: fedsim.errors.ConfigError: x"
    details = f"ServerApp failed with exception: {words}"
    error = _error(details, f"RuntimeError: {words}\nlast line")
    assert type(error) is FlowerRunError
    assert str(error).startswith(f"the run failed: {details}")
    assert str(error).endswith("last line")


def test_one_thread_is_only_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    first = environment("home")
    keys = ("FLWR_HOME", "FLWR_TELEMETRY_ENABLED", "RAY_ADDRESS", "OMP_NUM_THREADS")
    assert [first[key] for key in keys] == ["home", "0", "", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert environment("home")["OMP_NUM_THREADS"] == "3"


def test_workers_that_do_not_fit_are_refused() -> None:
    """Flower's engine would wait for them without end."""
    cores = os.cpu_count() or 1
    for workers, share, said in (
        (cores + 1, ExecutorConfig(), f"executor.workers = {cores + 1}, .*this machine has"),
        (1, ExecutorConfig(gpus_per_worker=64.0), "executor.gpus_per_worker = 64: needs 64"),
    ):
        with pytest.raises(ConfigError, match=said):
            run_on_flower({"workers": workers}, share, "", print)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--workers", "0"], "--workers"),
        (["--out", "taken"], "--out taken: holds files, but no run to resume"),
    ],
)
def test_wrong_input_is_found_before_anything_starts(
    tmp_path: Path, options: list[str], complaint: str
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    (tmp_path / "c.toml").write_text(small_config(Path("x.jsonl")).to_toml(), encoding="utf-8")
    done = fedsim("flower", "c.toml", "--out", "new", *options, folder=tmp_path)
    assert complaint in done.complaint
    assert not (tmp_path / "new").exists()


def test_a_run_that_failed_has_status_1_and_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text(small_config(tmp_path).to_toml(), encoding="utf-8")
    command = ("flower", "c.toml", "--superlink", "127.0.0.1:1")
    for outcome, said in (
        (FlowerRunError("the run failed: ServerApp failed"), "Failed: the run failed: ServerApp"),
        (None, "report.json does not exist; --out must be on a disk that this machine"),
    ):

        def ends(*_: object, outcome: FlowerRunError | None = outcome) -> None:
            if outcome is not None:
                raise outcome

        monkeypatch.setattr(flower_run, "run_on_flower", ends)
        done = fedsim(*command, folder=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert said in done.stderr


def test_the_app_folder_is_one_that_flower_takes_and_that_is_shipped() -> None:
    config, warnings = load_and_validate(APP / "pyproject.toml")
    assert not warnings
    keys = {"config", "folder", "out", "resume", "workers"}
    assert set(config["tool"]["flwr"]["app"]["config"]) == keys
    assert resolve("flower_apps", "default", "test").__name__ == "fedsim.experiments.flower_app"


def test_the_run_is_where_its_config_is(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's processes run in another folder: that of whoever started the SuperLink."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    shutil.copy(speeches, place)
    text = light_config(speeches, strategy={"rounds": 1}).to_toml()
    (place / "mine.toml").write_text(text.replace(str(speeches), speeches.name), encoding="utf-8")
    context = Context(1, 1, {}, RecordDict(), {"config": str(place / "mine.toml")})
    server_app.app(InProcessGrid(client_app), context)
    assert load_report(place / "runs" / "mine").privacy.rounds == 1


def test_the_client_app_asks_for_a_ray_of_its_own_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for named, used in (("", "local"), ("10.0.0.1:6379", "10.0.0.1:6379")):
        monkeypatch.setenv("RAY_ADDRESS", named)
        assert runpy.run_module("fedsim.grids.flower_client")["app"] is client_app
        assert os.environ["RAY_ADDRESS"] == used


class LateGrid(InProcessGrid):
    """A grid with one more node at each question."""

    def __init__(self) -> None:
        super().__init__(client_app)
        self.asked = 0

    def get_node_ids(self) -> list[int]:
        self.asked += 1
        return list(range(self.asked - 1, 0, -1))


def test_nodes_are_waited_for() -> None:
    assert wait_for_nodes(LateGrid(), 3) == [1, 2, 3]
    with pytest.raises(RuntimeError, match="0 of 9 nodes connected within 0 s"):
        wait_for_nodes(LateGrid(), 9, patience=0.0)
