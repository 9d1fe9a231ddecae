"""Who is told the metrics is told all of them, once: each tracker's files are read back."""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fedsim
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.report.schema import RoundMetrics
from tests.helpers.light import light_config

if TYPE_CHECKING:
    from mlflow import MlflowClient

TERMS = (
    "δ = 0.001, for one user, add-or-remove-one user, Poisson sampling of users, pld accountant, "
    "simulated: the draws follow from a seed"
)


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
            tag = f"epsilon ({TERMS})" if name == "epsilon" else f"not covered by ε/{name}"
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
    private = {f"not covered by ε/{name}" for name in ("held_out/loss", "train_loss", "units")}
    assert private | {f"epsilon ({TERMS})"} <= tags
    assert all(tag.startswith(("epsilon (δ", "not covered by ε/")) for tag in tags)


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
    """What somebody else would register; breaks in the round that it is told to."""

    def __init__(self, run_dir: Path, config: Config, terms: str) -> None:
        self.lines: list[RoundMetrics] = []
        self.closed = 0
        self.given = (run_dir, config, terms)
        self.breaks_in = -1

    def on_round(self, line: RoundMetrics) -> None:
        if line.round == self.breaks_in:
            raise ConnectionError("the dashboard is down")
        self.lines.append(line)

    def close(self) -> None:
        self.closed += 1


def test_others_are_told_through_the_same_door(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Recorder] = []

    def make(run_dir: Path, config: Config, terms: str) -> Recorder:
        made.append(Recorder(run_dir, config, terms))
        made[-1].breaks_in = 3 if len(made) == 1 else -1
        return made[-1]

    monkeypatch.setattr("fedsim.trackers.tracking.resolve", lambda *_name: make)
    config, run = tracked(speeches, "mine"), tmp_path / "run"
    with pytest.raises(ConnectionError):
        fedsim.run(config, run)
    fedsim.run(config, run, resume=True)
    first, second = made
    assert [line.round for line in first.lines] == [0, 1, 2]
    assert [line.round for line in second.lines] == [0, 1, 2, 3, 4]
    assert (first.closed, second.closed) == (1, 1)
    assert second.given == (run, config, TERMS)
    assert tuple(second.lines) == fedsim.load_metrics(run)


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
