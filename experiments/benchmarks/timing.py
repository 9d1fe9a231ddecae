"""Timing of a task, and runs of a module in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

from fedsim.utils.machine import Row, interleaved

REPETITIONS = 5


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
