"""Timing of a task, and runs of a module in a process of its own."""

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
        benchmark: its registered name.
        case: what was computed.
        seconds: the median of the repetitions, wall-clock; None where it was not measured, with
            the reason under `details["not_measured"]`.
        engine: by which of several ways, where there are several.
        repetitions: how many the median is of.
        ratio: of the reference's seconds to these, how many times faster than it; or None.
            A benchmark whose reference is fedsim itself says so.
        ratio_to_floor: of these seconds to those that the machine cannot do without.
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

    All run in this process, in that order: what slows the machine down for a while slows
    neighbours alike.

    Args:
        tasks: what to measure, by name.
        order: names, each as often as it is to be repeated.
    """
    seconds: dict[str, list[float]] = {}
    for name in order:
        started = time.perf_counter()
        tasks[name]()
        seconds.setdefault(name, []).append(time.perf_counter() - started)
    return seconds


def times_as_long(seconds: Sequence[float], others: Sequence[float]) -> float:
    """Return the median over turns of one task's seconds to another's of the same turn.

    A machine that others share changes its speed within seconds: what ran side by side had the
    same, which medians of all turns need not have.

    Args:
        seconds: of each turn, from `interleaved`.
        others: of as many turns or more; those to which `seconds` has none do not count.
    """
    return median(one / other for one, other in zip(seconds, others, strict=False))


def repeated(task: Callable[[], Any], repetitions: int = REPETITIONS) -> list[float]:
    """Return the wall-clock seconds of each repetition, after one that is not counted."""
    return interleaved({"": task}, [""] * (1 + repetitions))[""][1:]


def in_own_process(module: str, *arguments: object) -> Any:  # noqa: ANN401  (any JSON value)
    """Run `python -m module arguments` and return the JSON of the last line that it prints.

    Raises:
        RuntimeError: it failed; the message has the end of its standard error.
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
    """Return a row of the median of some repetitions; `others` are more of its fields."""
    row = Row(
        benchmark=benchmark,
        case=case,
        engine=engine,
        seconds=median(seconds),
        repetitions=len(seconds),
    )
    return {**row, **others}  # type: ignore[typeddict-item]
