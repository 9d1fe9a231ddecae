"""Grids of runs as a user starts them: one after another and on Ray, with failures and kills."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest

from fedsim.errors import ConfigError
from fedsim.report.schema import load_report
from fedsim.sweep.jobs import Job
from fedsim.sweep.ray import OnRay
from fedsim.utils.locks import LOCK
from tests.conftest import small_config
from tests.helpers.commands import fedsim
from tests.helpers.light import write_config
from tests.helpers.processes import start

STEM = "uls"
ROUNDS = 12
GROUP_SIZES = ("--vary", "strategy.group_size=2,3")
CELLS = [f"{STEM},source={s}.jsonl,group_size={k}" for s in ("here", "later") for k in (2, 3)]
ON_RAY = ("--grid", "ray", "--workers", "2", "--set", "executor.cpus_per_worker=0.5")


def compare(folder: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit status and what was said on standard error."""
    done = fedsim("compare", f"{STEM}.toml", *arguments, folder=folder)
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def folder(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config beside its text, which it names as seen from there."""
    path = tmp_path_factory.mktemp("sweeps")
    shutil.copy(speeches, path / "here.jsonl")
    write_config(
        path / f"{STEM}.toml",
        path / "here.jsonl",
        data={"source": "here.jsonl"},
        strategy={"rounds": ROUNDS},
        training={"evaluate_every": ROUNDS, "keep_checkpoints": ROUNDS},
    )
    return path


@pytest.fixture(scope="module")
def one_by_one(folder: Path, speeches: Path) -> Path:
    """The 2 × 2 grid in one process: half of it fails, is reported, and is done the next time."""
    arguments = ("--vary", "data.source=here.jsonl,later.jsonl", *GROUP_SIZES, "--out", "seq")
    status, said = compare(folder, *arguments)
    assert status == 1, said
    assert [f"Failed: {name}: data.source = 'later.jsonl'" in said for name in CELLS] == [
        *(False, False),
        *(True, True),
    ]
    out = folder / "seq"
    assert [(out / name / "report.json").exists() for name in CELLS] == [True, True, False, False]
    assert all("ConfigError" in (out / f"{n}.error.txt").read_text() for n in CELLS[2:])
    with (out / "comparison.csv").open(encoding="utf-8") as file:
        assert [row["num_failed"] for row in csv.DictReader(file)] == ["0", "0", "1", "1"]
    before = [(out / name / "report.json").read_bytes() for name in CELLS[:2]]

    shutil.copy(speeches, folder / "later.jsonl")
    status, said = compare(folder, *arguments)
    assert status == 0, said
    assert [f"{name}: finished before, not run again" in said for name in CELLS] == [
        *(True, True),
        *(False, False),
    ]
    assert before == [(out / name / "report.json").read_bytes() for name in CELLS[:2]]
    assert not list(out.glob("*.error.txt"))
    table = (out / "comparison.csv").read_text(encoding="utf-8")
    assert all(name in table for name in CELLS)
    return out


def writer_of(folder: Path) -> int:
    """Return the process that has the lock of a run's folder open; 0: none."""
    lock = str((folder / LOCK).resolve())
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(file.path == lock for file in process.open_files()):
                return process.pid
    return 0


def kill_worker(folder: Path, process: BaseProcess) -> int:
    """SIGKILL the process of a run after its first checkpoint; return when that was written."""
    checkpoint = folder / "checkpoints" / "round-000002.safetensors"
    deadline = time.monotonic() + 600
    pid = 0
    while not (pid and checkpoint.exists()):  # found before: a short run may soon be over
        assert process.is_alive(), "ended before its first checkpoint"
        assert time.monotonic() < deadline
        time.sleep(0.005)
        if not pid and (folder / LOCK).exists():  # a look at all processes takes a while
            pid = writer_of(folder)
    assert pid != process.pid
    written = checkpoint.stat().st_mtime_ns
    os.kill(pid, signal.SIGKILL)
    return written


def test_ray_gives_the_same_bits_whatever_is_killed_or_fails(
    folder: Path, one_by_one: Path
) -> None:
    """Two at a time; one is killed in the middle; two have no source and never will."""
    out = folder / "ray"
    sources = ("--vary", "data.source=here.jsonl,later.jsonl,never.jsonl")
    grid = ("compare", f"{STEM}.toml", *sources, *GROUP_SIZES, *ON_RAY, "--out", "ray")
    with contextlib.chdir(folder):
        process = start(folder / "log", *grid, OMP_NUM_THREADS="1", COLUMNS="200")
    written = kill_worker(out / CELLS[0], process)
    assert not (out / CELLS[0] / "report.json").exists()
    process.join(300)
    said = (folder / "log").read_text(encoding="utf-8")
    assert process.exitcode == 1, said
    lines = said.splitlines()
    failures = [line for line in lines if line.startswith("Failed: ")]
    assert len(failures) == 2
    assert all("never.jsonl" in line for line in failures)
    assert all(any(f"{name}: finished after" in line for line in lines) for name in CELLS)
    again = out / CELLS[0] / "checkpoints" / "round-000002.safetensors"
    assert again.stat().st_mtime_ns == written  # gone on from, not begun anew
    for name in CELLS:
        left, right = load_report(one_by_one / name), load_report(out / name)
        assert left.utility == right.utility
        assert left.privacy == right.privacy
        for file in ("metrics.jsonl", "ledger.json", "model/model.safetensors"):
            assert (one_by_one / name / file).read_bytes() == (out / name / file).read_bytes()


def test_a_run_with_workers_of_its_own_is_refused(tmp_path: Path) -> None:
    config = small_config(Path("none.jsonl"), executor={"grid": "ray", "workers": 2})
    with pytest.raises(ConfigError, match=r"run computes in one process; add --set executor.grid="):
        next(OnRay()([Job("one", config, tmp_path / "one")]))


def test_workers_without_ray_are_refused(folder: Path) -> None:
    status, said = compare(folder, "--workers", "2", "--out", "none")
    assert status == 2
    assert "need --grid ray" in said
    assert not (folder / "none").exists()
