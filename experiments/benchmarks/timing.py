"""Seconds of a task, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_REPETITIONS = 5


def repeated(task: Callable[[], Any], repetitions: int = _REPETITIONS) -> list[float]:
    """Return the wall-clock seconds of each repetition, after one that is not counted."""
    seconds = []
    for _ in range(1 + repetitions):
        started = time.perf_counter()
        task()
        seconds.append(time.perf_counter() - started)
    return seconds[1:]
