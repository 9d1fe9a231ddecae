"""Two processes on one run folder: the second is refused, and a killed holder frees it at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.helpers.commands import fedsim, fedsim_ok, write_config
from tests.robustness.kills.child import ended, start


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_second_of_two_processes_is_refused(speeches: Path, tmp_path: Path) -> None:
    """The first is stopped in the middle of its run, so that it holds the folder but is quiet."""
    config, out = tmp_path / "mine.toml", tmp_path / "both" / "mine"
    write_config(config, speeches, strategy={"rounds": 24}, training={"evaluate_every": 24})
    holder = start(tmp_path / "log", "run", config, "--out", out)
    pid = holder.pid or 0
    try:
        deadline = time.monotonic() + 120
        while not (out / "checkpoints" / "round-000002.safetensors").exists():
            assert holder.is_alive(), "ended before its first checkpoint"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        os.kill(pid, signal.SIGSTOP)
        before = contents(out)
        for options in ([], ["--resume"]):
            said = fedsim("run", config, "--out", out, *options).complaint
            assert said.startswith(f"Error: --out {out}: is being written by another process")
            assert f"pid {pid} on" in said
            assert said.count("\n") == 1
        done = fedsim("compare", config, "--out", out.parent)
        assert done.returncode == 2
        assert f"pid {pid} on" in done.stderr
        assert contents(out) == before
    finally:
        holder.kill()
    assert ended(holder) == -signal.SIGKILL
    fedsim_ok("run", config, "--out", out, "--resume")
    assert {"report.json", "model"} <= {path.name for path in out.iterdir()}
    assert not list(out.glob(".*"))
