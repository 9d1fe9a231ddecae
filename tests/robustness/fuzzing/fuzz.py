"""Hostile input for everything that is read from disk or from the wire: nothing may be believed.

A reader has to take an input with a sane value or to refuse it with its documented error. All else
is a loss: another exception, ten seconds without an end, half a gigabyte, a file that is read or
written outside of the input's folder, something unpickled or executed. Inputs are read in a
process of their own, so that a crash ends that process alone, and are kept where they led to a
loss. Input `number` of a reader is a function of seed, reader and number.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.robustness.fuzzing.child import INPUT, targets_of
from tests.robustness.outcome import Outcome

TARGETS = "tests.robustness.fuzzing.targets:TARGETS"
HANG = 10.0  # seconds of computing for one input
_PATIENCE = 6  # so many times as long asleep
_START = 300.0
_TICK = 0.25


def run(folder: Path, seconds: float, seed: int) -> Outcome:
    """Try hostile inputs on every reader in turn; losing inputs stay in `folder/losses`."""
    return fuzz(folder, seconds, seed)


def fuzz(
    folder: Path,
    seconds: float,
    seed: int,
    *,
    targets: str = TARGETS,
    hang: float = HANG,
    each: int = 1,
) -> Outcome:
    """Try hostile inputs on targets.

    Args:
        folder: to work in.
        seconds: until no new input is tried, counted from the start of the first reader; all of
            them have an equal share of it.
        seed: of the inputs.
        targets: `module:CONSTANT` that holds them.
        hang: seconds of computing for one input after which it counts as endless.
        each: inputs that every target is tried with, however long that takes.
    """
    names = list(targets_of(targets))
    spent, tried = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    folder = folder.resolve()
    counts: Counter[str] = Counter()
    losses: list[str] = []
    readers = _Readers(folder, targets, seed)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until or min(tried.values()) < each:
            name = min(names, key=lambda name: (tried[name] >= each, spent[name]))
            number, started = tried[name], time.monotonic()
            verdict, what = readers.ask(name, number, hang)
            if verdict == "loss":
                losses.append(f"{name}, input {number} of seed {seed}: {what}")
                _keep(folder, name, number, what)
            tried[name] += 1
            spent[name] += time.monotonic() - started
            counts[f"{name}: {verdict}"] += 1
    finally:
        readers.close()
    ordered = {key: counts[key] for key in sorted(counts)}
    return Outcome("fuzz", {"inputs": sum(tried.values()), **ordered}, tuple(losses))


def _keep(folder: Path, name: str, number: int, what: str) -> None:
    kept = folder / "losses" / f"{name}-{number}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder / INPUT, kept, symlinks=True)
    (kept / "loss.txt").write_text(what + "\n", encoding="utf-8", errors="replace")


class _Readers:
    """A process that forks readers, and the one that answers tries now, which is watched."""

    def __init__(self, folder: Path, targets: str, seed: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("valid", "cache", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        ours = {
            "FEDSIM_CACHE": str(folder / "cache"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "HF_HOME": str(folder / "cache" / "huggingface"),
            "HF_HUB_OFFLINE": "1",
            "MPLCONFIGDIR": str(folder / "cache" / "matplotlib"),
            "TMPDIR": str(folder / "tmp"),
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "2",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self._log = folder / "readers.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.robustness.fuzzing.child",
                    folder,
                    targets,
                    str(seed),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,  # else two answers come at once, and `select` sees none behind the first
                stderr=log,
                env={**os.environ, **ours},
            )
        self._reader = 0
        self._wait_for_a_reader()

    def ask(self, name: str, number: int, hang: float) -> tuple[str, str]:
        """Try one input; a crash or a hang is a loss, and the end of a reader."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, number]).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._answer(hang, hang * _PATIENCE)
        if answer is None:
            os.kill(self._reader, signal.SIGKILL)
            self._answer(_START, _START)  # that it died
            self._wait_for_a_reader()
            return "loss", f"no end after {hang:g} s"
        if answer.startswith("died"):
            self._wait_for_a_reader()
            return "loss", f"the reading process {answer.strip()}"
        verdict, what = json.loads(answer)
        return verdict, what

    def _wait_for_a_reader(self) -> None:
        answer = self._answer(_START, _START) or ""
        if not answer.startswith("ready"):
            self.close()
            raise RuntimeError(f"the fuzzer has no reader ({answer!r}); see {self._log}")
        self._reader = int(answer.split()[1])

    def _answer(self, computing: float, waiting: float) -> str | None:
        """Return a line, "" where there is nobody any more, or None after the time.

        The clock that counts is the reader's, and ours only while it sleeps: a process may be
        stopped for a while, or wait for a busy machine.
        """
        assert self._process.stdout is not None
        (_, began), ticks = self._looked_at(), 0
        while ticks * _TICK < waiting:
            if select.select([self._process.stdout], [], [], _TICK)[0]:
                return self._process.stdout.readline().decode()
            state, computed = self._looked_at()
            if computed - began >= computing:
                return None
            ticks += state not in "RT"
        return None

    def _looked_at(self) -> tuple[str, float]:
        """Return the reader's state, a letter as `ps` shows it, and its seconds of computing."""
        try:
            stat = Path(f"/proc/{self._reader}/stat").read_text(encoding="ascii")
        except OSError:
            return "X", 0.0
        fields = stat.rpartition(")")[2].split()
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End both."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()  # the reader reads to the end and goes, and the other with it
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
