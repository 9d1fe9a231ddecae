"""Who is told the metrics is told all of them, once: TensorBoard's files are read back."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import fedsim
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.report.schema import RoundMetrics
from tests.conftest import small_config

TERMS = (
    "δ = 0.001, for one user, add-or-remove-one user, Poisson sampling of users, pld accountant, "
    "seeded noise: void for who knows the seed"
)


def tracked(speeches: Path, *names: str) -> Config:
    return small_config(speeches, training={"trackers": names, "keep_checkpoints": 9})


def events(run: Path) -> list[tuple[str, int, float]]:
    """Return every scalar of every file, as it was written."""
    return [
        (value.tag, event.step, float(value.tensor.float_val[0]))
        for path in sorted((run / "tensorboard").glob("events.*"))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def numbers(tree: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in tree.items():
        inside = isinstance(value, dict)
        found |= numbers(value, f"{prefix}{key}/") if inside else {f"{prefix}{key}": value}
    return found


def assert_events_are_the_metrics(run: Path) -> None:
    found = events(run)
    assert max(Counter((tag, step) for tag, step, _ in found).values()) == 1
    expected = {}
    for text in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        step = line.pop("round")
        assert line.pop("epsilon_terms", None) == (TERMS if line.get("epsilon") else None)
        for name, value in numbers(line).items():
            tag = f"epsilon ({TERMS})" if name == "epsilon" else f"not covered by ε/{name}"
            expected[tag, step] = pytest.approx(value, rel=1e-6)
    assert {(tag, step): value for tag, step, value in found} == expected


@pytest.fixture(scope="module")
def finished(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tracked(speeches, "tensorboard")
    return fedsim.run(config, tmp_path_factory.mktemp("tracked") / "run")


def test_every_number_of_the_metrics_is_there_once(finished: Path) -> None:
    assert_events_are_the_metrics(finished)
    tags = {tag for tag, _, _ in events(finished)}
    private = {f"not covered by ε/{name}" for name in ("held_out/loss", "train_loss", "units")}
    assert private | {f"epsilon ({TERMS})"} <= tags
    assert all(tag.startswith(("epsilon (δ", "not covered by ε/")) for tag in tags)


def test_what_is_done_again_after_a_kill_is_there_once(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "checkpoints" / "round-000004.safetensors").unlink()  # rounds 3 and 4 are lost
    (run / "report.json").unlink()
    (run / "tensorboard" / "notes.txt").write_text("mine")
    fedsim.run(fedsim.load_config(run / "config.toml"), run, resume=True)
    assert_events_are_the_metrics(run)
    assert sorted(events(run)) == sorted(events(finished))
    assert (run / "tensorboard" / "notes.txt").read_text() == "mine"


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

    monkeypatch.setattr("fedsim.runner.tracking.resolve", lambda *_name: make)
    config, run = tracked(speeches, "mine"), tmp_path / "run"
    with pytest.raises(ConnectionError):
        fedsim.run(config, run)
    fedsim.run(config, run, resume=True)
    first, second = made
    assert [line.round for line in first.lines] == [0, 1, 2]
    assert [line.round for line in second.lines] == [3, 4]
    assert (first.closed, second.closed) == (1, 1)
    assert second.given == (run, config, TERMS)
    assert (*first.lines, *second.lines) == fedsim.load_metrics(run)


def test_no_epsilon_without_a_promise(speeches: Path, tmp_path: Path) -> None:
    non_private = {"name": "non-private", "rounds": 1}
    config = small_config(speeches, strategy=non_private, training={"trackers": ("tensorboard",)})
    run = fedsim.run(config, tmp_path / "run")
    assert not [tag for tag, _, _ in events(run) if "epsilon" in tag]
    assert events(run)


def test_a_tracker_that_is_not_there_is_named_first(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"tensorbord.: did you mean .tensorboard"):
        fedsim.run(tracked(speeches, "tensorbord"), tmp_path / "run")
    for module in ("torch.utils.tensorboard", "fedsim.runner.tensorboard"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ConfigError, match=r"needs the package tensorboard; pip install -c .*\]'$"):
        fedsim.run(tracked(speeches, "tensorboard"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
