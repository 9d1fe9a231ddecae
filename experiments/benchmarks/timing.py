"""Time tasks, and run modules in their own process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, TypedDict

REPETITIONS = 5


class _Required(TypedDict):
    benchmark: str
    case: str
    seconds: float | None


class Row(_Required, total=False):
    """One measurement; benchmarks add their own settings under `details`.

    Attributes:
        benchmark: registered name of the benchmark.
        case: the measured case.
        seconds: median wall-clock seconds over the repetitions; None if not measured, with the
            reason in `details["not_measured"]`.
        engine: the way of computing, if a case has several.
        repetitions: number of repetitions in the median.
        ratio: the reference's seconds over these seconds (the speed-up); or None. A benchmark
            that uses another ratio says so.
        ratio_to_floor: these seconds over the least possible on this machine.
        details: settings and results, as JSON values.
    """

    engine: str
    repetitions: int
    ratio: float | None
    ratio_to_floor: float
    details: dict[str, Any]


def interleaved(
    tasks: Mapping[str, Callable[[], Any]], order: Sequence[str]
) -> dict[str, list[float]]:
    """Return the wall-clock seconds of each repetition of each task in `order`.

    All run in this process, in that order, so a slow period of the machine affects neighbours
    alike.

    Args:
        tasks: tasks by name.
        order: names of tasks, one entry per repetition.
    """
    seconds: dict[str, list[float]] = {}
    for name in order:
        started = time.perf_counter()
        tasks[name]()
        seconds.setdefault(name, []).append(time.perf_counter() - started)
    return seconds


def times_as_long(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return the median over turns of one task's seconds divided by another's in the same turn.

    The speed of a shared machine changes within seconds. Repetitions of one turn ran at the same
    speed, unlike medians over all turns.

    Args:
        seconds: seconds of each turn, from `interleaved`.
        others: seconds of at least as many turns; extra turns are ignored.
    """
    return median(one / other for one, other in zip(seconds, others, strict=False))


def repeated(task: Callable[[], Any], repetitions: int = REPETITIONS) -> list[float]:
    """Return the wall-clock seconds of each repetition, after one untimed repetition."""
    return interleaved({"": task}, [""] * (1 + repetitions))[""][1:]


def in_own_process(module: str, *arguments: object) -> Any:  # noqa: ANN401  (any JSON value)
    """Run `python -m module arguments` and return the JSON of its last line of output.

    Raises:
        RuntimeError: the process failed; the message has the end of its standard error.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"{module} {arguments}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def row_of(
    benchmark: str,
    case: str,
    engine: str,
    seconds: list[float],
    **others: Any,  # noqa: ANN401
) -> Row:
    """Return a row with the median of `seconds`; `others` are further fields."""
    row = Row(
        benchmark=benchmark,
        case=case,
        engine=engine,
        seconds=median(seconds),
        repetitions=len(seconds),
    )
    return {**row, **others}  # type: ignore[typeddict-item]
