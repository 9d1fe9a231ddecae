"""Ten thousand rounds of `fedsim run`: neither memory nor time per round may grow."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from fedsim.report.schema import load_report
from tests.robustness.dirty.tiny_world import tiny_config
from tests.robustness.outcome import Outcome

ROUNDS = 10_000
_GROWTH = 0.05
_WINDOW = 50  # rounds whose processor time is one number
_FEWEST = 20  # windows on each side, for a judgement
_POLL = 0.1
_LARGEST_PAGE = 400e3  # bytes of report.html


@dataclass(frozen=True)
class Sample:
    """What a look at the process saw.

    Attributes:
        rounds: done.
        cpu: seconds of processor time so far, of all threads.
        memory: bytes that are resident.
    """

    rounds: int
    cpu: float
    memory: int


def run(folder: Path, seconds: float, seed: int) -> Outcome:
    """Run as many of the rounds as the time allows, and compare early windows with late ones."""
    config = tiny_config(
        folder,
        seed,
        strategy={"rounds": ROUNDS, "cohort_size": 3, "group_size": 2},
        privacy={"noise_multiplier": 4.0, "delta": 1e-3},
        server={"optimizer": "sgd", "learning_rate": 1e-4},
        training={"evaluate_every": 10, "checkpoint_every": 20},
    )
    path, out = folder / "long.toml", folder / "run"
    path.write_text(config.to_toml(), encoding="utf-8")
    with (folder / "stderr.txt").open("wb") as words:
        command = [sys.executable, "-m", "fedsim.cli.main", "run", str(path), "--out", str(out)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=words)
        samples = _watch(process, out / "metrics.jsonl", time.monotonic() + seconds)
    losses = _judge(samples)
    if process.returncode:
        last = (folder / "stderr.txt").read_text(errors="replace")[-2000:]
        losses.append(f"fedsim run ended with {process.returncode}: {last}")
    elif process.returncode == 0:
        losses += _judge_page(out)
    counts = {"rounds": samples[-1].rounds if samples else 0, "samples": len(samples)}
    return Outcome("long run", counts | _figures(samples), tuple(losses))


def _watch(process: subprocess.Popen[bytes], metrics: Path, end: float) -> list[Sample]:
    """Look at the process until it ends; at `end` it is killed, with returncode None left."""
    samples: list[Sample] = []
    rounds, position = -1, 0  # the first line is of round 0
    while process.poll() is None:
        if time.monotonic() > end:
            process.kill()
            process.wait()
            process.returncode = None  # not of its own accord
            break
        if metrics.exists():
            with metrics.open("rb") as file:
                file.seek(position)
                text = file.read()
            rounds, position = rounds + text.count(b"\n"), position + len(text)
        seen = _look(process.pid, rounds) if rounds > 0 else None
        if seen is not None and (not samples or rounds >= samples[-1].rounds + _WINDOW):
            samples.append(seen)
        time.sleep(_POLL)
    return [sample for sample in samples if sample.rounds < ROUNDS]  # the report is no round


def _look(pid: int, rounds: int) -> Sample | None:
    try:
        process = psutil.Process(pid)
        cpu, memory = process.cpu_times(), process.memory_info().rss
    except psutil.Error:  # it has just ended
        return None
    return Sample(rounds, cpu.user + cpu.system, memory)


def _rates(samples: Sequence[Sample]) -> np.ndarray:
    """Return processor seconds a round between neighbouring samples."""
    cpu, rounds = np.array([s.cpu for s in samples]), np.array([s.rounds for s in samples])
    return np.asarray(np.diff(cpu) / np.diff(rounds))


def _thirds(values: np.ndarray) -> tuple[float, float]:
    """Return the lower quartiles of the values up to the middle and of the last third.

    The first sixth is warming up. Quartiles, since neighbours on the machine only ever add.
    """
    count = len(values)
    early, late = values[count // 6 : count // 2], values[-count // 3 :]
    return float(np.quantile(early, 0.25)), float(np.quantile(late, 0.25))


def _figures(samples: Sequence[Sample]) -> dict[str, int]:
    if len(samples) < 2 * _FEWEST:
        return {}
    early, late = _thirds(_rates(samples))
    least, most = _thirds(np.array([s.memory for s in samples], dtype=np.float64))
    return {
        "microseconds a round, early": round(early * 1e6),
        "microseconds a round, late": round(late * 1e6),
        "kB resident, early": round(least / 1e3),
        "kB resident, late": round(most / 1e3),
    }


def _judge(samples: Sequence[Sample]) -> list[str]:
    if len(samples) < 2 * _FEWEST:
        return [f"only {len(samples)} windows of {_WINDOW} rounds: too few to tell growth"]
    losses = []
    memory = np.array([sample.memory for sample in samples], dtype=np.float64)
    for what, values in (("processor time a round", _rates(samples)), ("memory", memory)):
        early, late = _thirds(values)
        if late > (1 + _GROWTH) * early:
            losses.append(f"{what} grew from {early:.6g} to {late:.6g}")
    return losses


def _judge_page(out: Path) -> list[str]:
    size = (out / "report.html").stat().st_size
    losses = [f"report.html has {size} bytes"] if size > _LARGEST_PAGE else []
    done = load_report(out).cost.rounds
    return losses if done == ROUNDS else [*losses, f"{done} rounds reported, not {ROUNDS}"]
