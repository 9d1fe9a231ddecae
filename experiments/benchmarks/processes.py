"""Throughput of two concurrent runs on one machine, by the way that threads wait.

`python -m fedsim.experiments.benchmarks.processes SECONDS` waits for a line on standard input. It
clips and sums users of a small network for that time, and prints the number of users per second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from statistics import median
from typing import IO, cast

import torch

from fedsim.clients.engine_choice import choose_engine
from fedsim.clipping import FlatClip
from fedsim.experiments.benchmarks.engines.cases import Case, workload
from fedsim.experiments.benchmarks.timing import Row
from fedsim.utils.machine import BRIEF_WAITING

_SECONDS, _TURNS = 10.0, 5

_WAYS: Mapping[str, tuple[int, str, Mapping[str, str]]] = {
    # case: number of processes, reference case, environment of each process
    "alone, as torch waits by itself": (1, "alone, as torch waits by itself", {}),
    "alone, as fedsim lets it wait": (1, "alone, as torch waits by itself", BRIEF_WAITING),
    "two, a thread each": (2, "two, a thread each", {"OMP_NUM_THREADS": "1"}),
    "two, as torch waits by itself": (2, "two, a thread each", {}),
    "two, as fedsim lets them wait": (2, "two, a thread each", BRIEF_WAITING),
}


def run(seconds: float = _SECONDS, turns: int = _TURNS) -> list[Row]:
    """Return a row for each case; `ratio` divides its units per second by its reference case's.

    The ratio is the median over turns, as the speed of a shared machine changes.
    """
    done: dict[str, list[float]] = {name: [] for name in _WAYS}
    for _ in range(turns):
        for name, (processes, _, environment) in _WAYS.items():
            done[name].append(units_a_second(processes, environment, seconds))
    rates = {name: median(values) for name, values in done.items()}
    return [
        Row(
            benchmark="processes",
            case=name,
            seconds=1.0 / rates[name],
            repetitions=turns,
            ratio=median(
                own / other for own, other in zip(done[name], done[reference], strict=True)
            ),
            details={"units_per_second": rates[name], "ratio_to": reference},
        )
        for name, (_, reference, _) in _WAYS.items()
    ]


def units_a_second(processes: int, environment: Mapping[str, str], seconds: float) -> float:
    """Return the units per second of `processes` processes, each with threads for all cores."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in (*BRIEF_WAITING, "OMP_NUM_THREADS")
    }
    command = [sys.executable, "-m", __name__, str(seconds)]
    started = [
        subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**inherited, **environment},
        )
        for _ in range(processes)
    ]
    for process in started:
        _pipe(process.stdout).readline()  # it is ready
    for process in started:
        _pipe(process.stdin).write("go\n")
        _pipe(process.stdin).flush()
    answers = [json.loads(process.communicate()[0]) for process in started]
    return float(sum(answer["units_per_second"] for answer in answers))


def _pipe(pipe: IO[str] | None) -> IO[str]:
    return cast("IO[str]", pipe)


def _work(seconds: float) -> float:
    """Print "ready", wait for a line, and return the units per second."""
    work = workload(Case("uls", "tiny-gpt", num_units=16, group_size=4))
    engine = choose_engine("auto", work.task, work.model)

    def once() -> int:
        clip = FlatClip(l2_clip_norm=0.1)
        return engine(work.task, work.parameters, work.keys, clip, 0).num_units

    once()
    sys.stdout.write(f"ready, {torch.get_num_threads()} threads\n")
    sys.stdout.flush()
    sys.stdin.readline()
    started, units = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        units += once()
    return units / (time.perf_counter() - started)


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"units_per_second": _work(float(sys.argv[1]))}) + "\n")
