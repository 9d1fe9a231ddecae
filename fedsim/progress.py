"""A progress bar for people, log lines for everything else."""

from __future__ import annotations

import logging
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedsim.report.schema import RoundMetrics

log = logging.getLogger("fedsim")


class RoundProgress:
    """Shows rounds and the last held-out loss on standard error; a terminal gets a bar."""

    def __init__(self, title: str, rounds: int, done: int) -> None:
        self._title = title
        self._rounds = rounds
        console = Console(stderr=True)
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

    def __enter__(self) -> RoundProgress:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def advance(self, line: RoundMetrics) -> None:
        """Show one more round."""
        if line.held_out is None:
            self._progress.advance(self._task)
            return
        note = f"held-out loss {line.held_out.loss:.4f}"
        self._progress.update(self._task, advance=1, note=note)
        if self._progress.disable:
            log.info("%s: round %d of %d, %s", self._title, line.round, self._rounds, note)


class CountProgress:
    """Counts rounds on standard error, silent when that is not a terminal."""

    def __init__(self, title: str, rounds: int) -> None:
        console = Console(stderr=True)
        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=rounds)

    def __enter__(self) -> CountProgress:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def advance(self) -> None:
        """Count one more."""
        self._progress.advance(self._task)
