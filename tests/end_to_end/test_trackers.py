"""Who is told the metrics is told all of them, once: each tracker's files are read back."""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fedsim
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.report.schema import RoundMetrics
from tests.helpers.commands import fedsim as command
from tests.helpers.light import light_config

if TYPE_CHECKING:
    from mlflow import MlflowClient

TERMS = (
    "simulated: δ = 0.001, for one user, add-or-remove-one user, Poisson sampling of users, pld "
    "accountant, the draws follow from a seed"
)
COVERED = {"epsilon": f"epsilon ({TERMS})", "release_over_noise": "release_over_noise"}

Scalar = tuple[str, int, float]


def tracked(speeches: Path, *names: str) -> Config:
    return light_config(speeches, training={"trackers": names, "keep_checkpoints": 9})


def events(run: Path) -> list[Scalar]:
    """Return every scalar of every file of TensorBoard, as it was written."""
    # Not at the top, as the others: each process that collects tests would wait for them.
    from tensorboard.backend.event_processing.event_file_loader import (  # noqa: PLC0415
        EventFileLoader,
    )

    return [
        (value.tag, event.step, float(value.tensor.float_val[0]))
        for path in sorted((run / "tensorboard").glob("events.*"))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def records(run: Path) -> Iterator[Any]:
    """Yield what W&B wrote to be synchronised: a file in LevelDB's format for logs."""
    from wandb.proto import wandb_internal_pb2  # noqa: PLC0415

    (path,) = (run / "wandb").glob("offline-run-*/run-*.wandb")
    content, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = 2**15 - place % 2**15
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def history(run: Path) -> list[Scalar]:
    found = []
    for record in records(run):
        if record.WhichOneof("record_type") == "history":
            line = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            step = int(line["_step"])
            found += [(key, step, value) for key, value in line.items() if key[0] != "_"]
    return found


def client(run: Path) -> MlflowClient:
    from mlflow import MlflowClient  # noqa: PLC0415

    return MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow' / 'mlflow.db'}")


def measured(run: Path) -> list[Scalar]:
    """Return the metrics of the only run that is not deleted."""
    database = client(run)
    (found,) = database.search_runs([database.get_experiment_by_name("fedsim").experiment_id])
    assert found.data.tags["epsilon_terms"] == TERMS
    assert found.info.status == "FINISHED"
    return [
        (metric.key, metric.step, metric.value)
        for name in found.data.metrics
        for metric in database.get_metric_history(found.info.run_id, name)
    ]


def spelt(name: str) -> str:
    """Return a tag as MLflow allows it."""
    return re.sub(r"[^/\w.\- :]+", "-", name).strip("-")


SHOWN: dict[str, Callable[[Path], list[Scalar]]] = {
    "tensorboard": events,
    "wandb": history,
    "mlflow": measured,
}


def numbers(tree: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in tree.items():
        inside = isinstance(value, dict)
        found |= numbers(value, f"{prefix}{key}/") if inside else {f"{prefix}{key}": value}
    return found


def assert_they_show_the_metrics(run: Path) -> None:
    expected = {}
    for text in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        step = line.pop("round")
        assert line.pop("epsilon_terms", None) == (TERMS if line.get("epsilon") else None)
        for name, value in numbers(line).items():
            tag = COVERED.get(name, f"not covered by ε/{name}")
            expected[tag, step] = pytest.approx(value, rel=1e-6)
    for name, read in SHOWN.items():
        found = read(run)
        assert max(Counter((tag, step) for tag, step, _ in found).values()) == 1
        as_shown = {(spelt(tag), step): value for (tag, step), value in expected.items()}
        wanted = as_shown if name == "mlflow" else expected
        assert {(tag, step): value for tag, step, value in found} == wanted


@pytest.fixture(scope="module")
def finished(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tracked(speeches, *SHOWN)
    return fedsim.run(config, tmp_path_factory.mktemp("tracked") / "run").path


def test_every_number_of_the_metrics_is_there_once(finished: Path) -> None:
    assert_they_show_the_metrics(finished)
    tags = {tag for tag, _, _ in events(finished)}
    private = ("held_out/loss", "held_out/unit_loss", "train_loss", "units", "clipped")
    assert {f"not covered by ε/{name}" for name in private} <= tags
    assert {tag for tag in tags if not tag.startswith("not covered by ε/")} == {*COVERED.values()}


def test_a_resumed_run_shows_every_round_once(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "checkpoints" / "round-000004.safetensors").unlink()  # rounds 3 and 4 are lost
    (run / "report.json").unlink()
    fedsim.run(fedsim.load_config(run / "config.toml"), run, resume=True)
    assert_they_show_the_metrics(run)


def test_nothing_of_machine_text_or_seed_is_recorded(finished: Path, speeches: Path) -> None:
    """Offline files are made to be sent; a seed makes seeded noise known."""
    sent = list(records(finished))
    assert not any(record.WhichOneof("record_type") == "environment" for record in sent)
    (begun,) = [record.run for record in sent if record.WhichOneof("record_type") == "run"]
    assert (begun.host, begun.git.remote_url, begun.notes) == ("", "", f"ε: {TERMS}")
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert {"strategy", "privacy", "server"} <= set(config) <= {*config, "_wandb"}
    assert not {"seed", "data", "model"} & set(config)
    (folder,) = (finished / "wandb").glob("offline-run-*")
    (text,) = folder.glob("run-*.wandb")
    assert str(speeches).encode() not in text.read_bytes()
    for path in (finished / "wandb").rglob("*"):  # its name may hold a seed
        assert not path.is_file() or str(finished).encode() not in path.read_bytes()


class Recorder:
    """What somebody else would register; raises in the calls that it is told to."""

    def __init__(self, run_dir: Path, config: Config, terms: str) -> None:
        self.lines: list[RoundMetrics] = []
        self.closed = 0
        self.given = (run_dir, config, terms)
        self.fails: Callable[[], bool] = lambda: False

    def on_round(self, line: RoundMetrics) -> None:
        if self.fails():
            raise ConnectionError("the dashboard is\ndown")
        self.lines.append(line)

    def close(self) -> None:
        self.closed += 1
        if self.fails():
            raise ConnectionError("the dashboard is\ndown")


Fails = Callable[[int], bool]


@pytest.fixture
def told(
    speeches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> Callable[[Fails, Fails], tuple[Recorder | None, list[str]]]:
    """Run with a tracker whose creation, or call, of a number fails; return it and warnings."""

    def run(opening: Fails, call: Fails) -> tuple[Recorder | None, list[str]]:
        made: list[Recorder] = []
        attempts, calls = iter(range(99)), iter(range(99))

        def make(run_dir: Path, config: Config, terms: str) -> Recorder:
            if opening(next(attempts)):
                raise ConnectionError("the dashboard is\ndown")
            made.append(Recorder(run_dir, config, terms))
            made[-1].fails = lambda: call(next(calls))
            return made[-1]

        monkeypatch.setattr("fedsim.trackers.tracking.resolve", lambda *_name: make)
        monkeypatch.setattr("fedsim.trackers.tracking._PATIENCE", 0.0)
        fedsim.run(tracked(speeches, "mine"), tmp_path / "run")
        return made[0] if made else None, [
            each.message for each in caplog.records if "mine" in each.message
        ]

    return run


def never(_: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("opening", "call"),
    [(never, never), (lambda at: at < 2, never), (never, lambda at: at in (2, 3))],
    ids=["works", "opens late", "is down for a while"],
)
def test_others_are_told_all_lines_through_the_same_door(
    told: Callable[[Fails, Fails], tuple[Recorder | None, list[str]]],
    tmp_path: Path,
    opening: Fails,
    call: Fails,
) -> None:
    recorder, warnings = told(opening, call)
    assert recorder is not None
    assert tuple(recorder.lines) == fedsim.load_metrics(tmp_path / "run")
    assert [line.round for line in recorder.lines] == [0, 1, 2, 3, 4]
    assert recorder.closed == 1
    run_dir, config, terms = recorder.given
    assert (run_dir, config.training.trackers, terms) == (tmp_path / "run", ("mine",), TERMS)
    assert len(warnings) == (opening(0) or call(2))


@pytest.mark.parametrize(("opening", "call"), [(lambda _: True, never), (never, lambda at: at > 1)])
def test_a_tracker_ends_no_run_and_is_warned_of_once(
    told: Callable[[Fails, Fails], tuple[Recorder | None, list[str]]],
    tmp_path: Path,
    opening: Fails,
    call: Fails,
) -> None:
    _, (warning,) = told(opening, call)
    assert warning.startswith(
        "tracker mine: ConnectionError: the dashboard is down; the run continues"
    )
    assert [line.round for line in fedsim.load_metrics(tmp_path / "run")] == [0, 1, 2, 3, 4]
    assert (tmp_path / "run" / "report.json").exists()


class Server(BaseHTTPRequestHandler):
    """As an MLflow server which answers two writes, then says 503 until the run has four lines.

    A count of refused writes would depend on time: after a failure the run waits before it tries
    again, on a busy machine until its end.
    """

    taken, metrics = 0, Path()

    def do(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        status, answer = 200, self.answer(body)
        if "log-batch" in self.path:
            Server.taken += 1
            if Server.taken > 2 and len(self.metrics.read_text("utf-8").splitlines()) < 4:
                status, answer = 503, {"error_code": "TEMPORARILY_UNAVAILABLE"}
            else:
                STEPS.append(body["metrics"][0]["step"])
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        info = {"run_id": "a" * 32, "experiment_id": "1", "status": "RUNNING", "start_time": 1}
        run = {"info": info | {"artifact_uri": "x", "lifecycle_stage": "active"}, "data": {}}
        return {"experiment_id": "1", "experiment": {"experiment_id": "1"}, "run": run}

    do_GET = do_POST = do_PATCH = do  # noqa: N815  (the names that http.server calls)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401
        """Say nothing."""


STEPS: list[int] = []


def test_an_outage_of_the_mlflow_server_ends_no_run(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "metrics", tmp_path / "run" / "metrics.jsonl")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    config = tmp_path / "c.toml"
    config.write_text(tracked(speeches, "mlflow").to_toml(), encoding="utf-8")
    try:
        done = command("run", config, "--out", tmp_path / "run")
    finally:
        server.shutdown()
        serving.join()
        server.server_close()
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("tracker mlflow: ") == 1
    assert "Traceback" not in done.stderr
    assert STEPS == [0, 1, 2, 3, 4]


def test_no_epsilon_without_a_promise_and_a_missing_package_is_named(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    non_private = {"name": "non-private", "rounds": 1}
    config = light_config(speeches, strategy=non_private, training={"trackers": ("tensorboard",)})
    run = fedsim.run(config, tmp_path / "run").path
    tags = [tag for tag, _, _ in events(run)]
    assert tags and not any("epsilon" in tag for tag in tags)
    for module in list(sys.modules):
        if "tensorboard" in module:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name, message in (
        ("tensorboard", r"tensorboard.*; pip install 'fedsim-dp\[tensorboard\]'$"),
        ("tensorbord", "tensorbord.: did you mean .tensorboard"),
    ):
        with pytest.raises(ConfigError, match=message):
            fedsim.run(tracked(speeches, name), tmp_path / name)
        assert not (tmp_path / name).exists()
