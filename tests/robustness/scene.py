"""A small run for these tests, and the comparison of two run folders bit by bit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from fedsim.data.store import TokenStore
from fedsim.runner.checkpoint import checkpoints_in, load_checkpoint, round_of
from fedsim.runner.folder import RunFolder
from tests.helpers.commands import write_config
from tests.helpers.light import EVERY_SERVER_OPTION
from tests.helpers.processes import Strike, ended, start

ROUNDS = 12
_TIMES = {"seconds.json", "report.json", "report.html"}


@dataclass(frozen=True)
class Scene:
    """A folder with a config, a cache, a log and a run, which is built by the command."""

    folder: Path
    config: Path

    @classmethod
    def make(cls, folder: Path, text: Path, noise: str = "seeded") -> Scene:
        """Write the config of twelve quick rounds into a new folder."""
        folder.mkdir()
        config = write_config(
            folder / "config.toml",
            text,
            strategy={"rounds": ROUNDS},
            privacy={"noise": noise, "declared_num_users": 24},
            server=EVERY_SERVER_OPTION,
            training={"evaluate_every": 2, "checkpoint_every": 2, "keep_checkpoints": 2},
        )
        return cls(folder, config)

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.folder / "run"

    @property
    def log(self) -> str:
        """The output of the last process."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    def start(self, strike: Strike | None = None) -> BaseProcess:
        """Start the run or resume it."""
        order = ("run", self.config, "--out", self.run, "--resume")
        cache = str(self.folder / "cache")
        return start(self.folder / "log", *order, strike=strike, FEDSIM_CACHE=cache)

    def to_the_end(self) -> None:
        """Start or resume the run; it must succeed."""
        assert ended(self.start()) == 0, self.log


def check_disk(scene: Scene, charged: int = 0) -> int:
    """Check a run folder between a kill and the resume, and return the charged releases.

    Files under their final names are whole, each visible round is charged, and no charge of an
    earlier process is gone.
    """
    folder = RunFolder(scene.run)
    releases = folder.read_ledger().num_releases if folder.ledger.exists() else 0
    visible = [0, *(line.round for line in folder.read_metrics())]
    for path in checkpoints_in(folder.checkpoints):
        assert load_checkpoint(path).round == round_of(path)
        visible.append(round_of(path))
    if folder.model.exists() or folder.report.exists():
        visible.append(ROUNDS)
    assert releases >= max(visible)
    assert releases >= charged
    for path in (*scene.run.glob("[!.]*.json"), *scene.run.glob("model/*.json")):
        json.loads(path.read_text(encoding="utf-8"))
    for store in scene.folder.glob("cache/stores/[!.]*"):
        TokenStore.open(store).verify()
    return releases


def check_same(reference: Path, run: Path, *, checkpoints: bool = True) -> None:
    """Check that two run folders hold the same bytes, but for times and logs.

    Without `checkpoints`, of these the last alone: a run that kept its state may have others.
    """
    files, expected = contents(run), contents(reference)
    if not checkpoints:
        for each in (files, expected):
            for name in sorted(name for name in each if name.startswith("checkpoints"))[:-1]:
                del each[name]
    assert files.keys() == expected.keys()
    for name in files.keys() - _TIMES:
        assert files[name] == expected[name], name
    assert _without_times(files["report.json"]) == _without_times(expected["report.json"])


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a run folder by their relative paths, without its logs."""
    files = (path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return {name: content for name, content in found.items() if not name.startswith("run.log")}


def _without_times(content: bytes) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(content)
    del report["created"], report["cost"]["seconds"], report["cost"]["peak_memory_bytes"]
    return report
