"""What tests of whole Ray runs share: real commands, output in files, workers found and killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.torch import load_file

from fedsim.config import Config
from tests.robustness.kills.child import start

LEAVINGS = [  # of Ray: its own log files open, its own processes to the end of this one
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PATIENCE = 180.0  # seconds for a run on a machine that is busy with other tests


class Command:
    """A `fedsim` command in a session of its own; its output goes to a file.

    Ray's daemons may outlive the process that started them and keep its pipes open: who reads a
    pipe to its end would wait for them.
    """

    def __init__(self, log: Path, *arguments: object, **env: str) -> None:
        self.log = log
        # Sums of float32 depend on the number of threads: Ray gives a worker one.
        self._process = start(log, *arguments, **{"OMP_NUM_THREADS": "1", **env})
        self._pid = self._process.pid or 0

    def wait(self) -> int | None:
        """Return the exit status."""
        self._process.join(PATIENCE)
        return self._process.exitcode

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive()

    def workers(self, busy: Path) -> list[psutil.Process]:
        """Return its Ray workers that are computing."""
        return computing(self._pid, busy)

    def end(self) -> None:
        """Kill what is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)


def computing(pid: int, busy: Path) -> list[psutil.Process]:
    """Return the Ray workers below a process that are computing a shard, everything loaded.

    A worker has, from its first update on, a file of its process id in the folder `busy`.
    """
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                loaded = (busy / str(child.pid)).exists()
                if loaded and child.cmdline()[:1] == ["ray::Worker.answer"]:
                    found.append(child)
    return found


@contextmanager
def started(log: Path, *arguments: object, **env: str) -> Iterator[Command]:
    """Start a command, and leave nothing of it behind."""
    command = Command(log, *arguments, **env)
    try:
        yield command
    finally:
        command.end()


def until(condition: Callable[[], Any], what: str) -> Any:  # noqa: ANN401
    """Return what `condition` gives as soon as it is true."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"waited {PATIENCE:g} s in vain: {what}")


def write_config(path: Path, config: Config, **executor: object) -> Path:
    """Write a config with another executor."""
    changed = config.executor.model_copy(update=executor)
    path.write_text(config.model_copy(update={"executor": changed}).to_toml(), encoding="utf-8")
    return path


def assert_same_run(left: Path, right: Path) -> None:
    """The model to the bit, and the ledger: every release charged once."""
    ours, theirs = (load_file(path / "model" / "model.safetensors") for path in (left, right))
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert (left / "ledger.json").read_text() == (right / "ledger.json").read_text()
    assert (left / "metrics.jsonl").read_text() == (right / "metrics.jsonl").read_text()


def plugin(
    folder: Path, module: str, entry_points: Mapping[str, str], name: str = "faulty"
) -> Path:
    """Make an installed distribution of one module, as a third party would, and return its folder.

    Args:
        folder: to be put on PYTHONPATH.
        module: the source.
        entry_points: what it offers, "group name" to "module:object".
        name: of the module and of the distribution.
    """
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{name}.py").write_text(module, encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        f"[{key.split()[0]}]\n{key.split()[1]} = {value}" for key, value in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
