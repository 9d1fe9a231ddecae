"""A build killed with SIGKILL, wherever it is, and started again ends in the very same store."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from fedsim.data.store import TokenStore

NUM_KILLS = int(os.environ.get("FEDSIM_TEST_KILLS", "3"))


def _begin(destination: Path, num_workers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.robustness.kills.store_build"]
    process = subprocess.Popen(
        [*command, str(destination), str(num_workers)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "begins\n"
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate()
    assert process.returncode == 0


def _in_session(session: int) -> list[int]:
    alive = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session and psutil.Process(pid).status() != "zombie":
                alive.append(pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return alive


def test_killed_at_random_moments(tmp_path: Path) -> None:
    undisturbed, store = tmp_path / "undisturbed", tmp_path / "store"
    started = time.monotonic()
    _end(_begin(undisturbed, 0))
    duration = time.monotonic() - started
    rng = random.Random(0)  # noqa: S311
    for kill in range(NUM_KILLS):
        process = _begin(store, num_workers=2 * (kill % 2))
        time.sleep(rng.uniform(0.0, duration))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert not store.exists() or TokenStore.open(store)
        deadline = time.monotonic() + 60
        while _in_session(process.pid):  # a worker reads an end of file, and goes
            assert time.monotonic() < deadline
            time.sleep(0.05)
    if not store.exists():
        _end(_begin(store, num_workers=1))
    for path in undisturbed.iterdir():
        assert (store / path.name).read_bytes() == path.read_bytes(), path.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "undisturbed"]


def test_two_builders_of_one_destination(tmp_path: Path) -> None:
    """The second waits for the first, and then finds that there is nothing left to do."""
    first, second = (_begin(tmp_path / "store", 0) for _ in range(2))
    assert {first.wait(), second.wait()} == {0, 1}
    for process in (first, second):
        process.communicate()
    assert TokenStore.open(tmp_path / "store").num_users == 42
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
