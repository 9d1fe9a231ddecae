"""Progress of a run: a bar in a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedsim.report.wording import duration_text
from fedsim.utils.terminal import logging_each_half_minute, progress_console

log = logging.getLogger("fedsim")


class CountProgress:
    """Shows finished rounds: a bar if standard error is a terminal, else ten log lines or more.

    Because a round may take hours, a further line follows every half minute.
    """

    def __init__(self, title: str, rounds: int, done: int = 0) -> None:
        console = progress_console()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=rounds, completed=done, note="")
        self._title, self._rounds, self._done, self._first = title, rounds, done, done
        self._started = self._began = time.monotonic()  # start of all rounds, of the current one
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._progress.start()
        self._started = self._began = time.monotonic()
        if self._progress.disable:
            self._open.enter_context(logging_each_half_minute(self._still))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._progress.stop()

    def advance(self, *_: object, note: str = "") -> None:
        """Count one more round, and show a note on it."""
        self._progress.advance(self._task)
        if note:
            self._progress.update(self._task, note=note)
        self._done += 1
        self._began = time.monotonic()
        tenths = [10 * done // self._rounds for done in (self._done - 1, self._done)]
        if self._progress.disable and (note or tenths[0] != tenths[1]):
            place = f"{self._title}: round {self._done} of {self._rounds}"
            log.info("%s", ", ".join(filter(None, (place, note))))

    def _still(self) -> str:
        seconds = time.monotonic() - self._began
        now = f"{self._done} of {self._rounds} rounds done; round {self._done + 1} running for"
        return f"{self._title}: {now} {seconds:.0f} s{self._left(seconds)}"

    def _left(self, running: float) -> str:
        """Return the estimated time left in words; "" before the first round is done."""
        if self._done == self._first:
            return ""
        each = (self._began - self._started) / (self._done - self._first)
        seconds = max(each - running, 0.0) + each * (self._rounds - self._done - 1)
        return f"; about {duration_text(seconds)} left"
