"""Terminal output of commands: tables and progress; silence of libraries."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:  # callers of `is_terminal` need not import rich, which is slow
    from rich.console import Console
    from rich.table import Table

_WIDTH_OF_A_FILE = 200  # columns
_LONGEST = 500  # characters of a library's warning
_QUIET = 30.0  # seconds between two lines in a log

log = logging.getLogger("fedsim")


def is_terminal(stream: TextIO) -> bool:
    """Whether a stream is an interactive terminal.

    False for files and pipes, even with FORCE_COLOR, which notebooks set and rich obeys. Also false
    for a notebook's `!`, which opens a terminal of 80 columns and keeps all output.
    """
    return stream.isatty() and "JPY_PARENT_PID" not in os.environ


def table_console() -> Console:
    """Return a console on standard output.

    Without a terminal it has 200 columns, or COLUMNS. Rich's default of 80 would break words in a
    table of twelve columns.
    """
    return _console(stderr=False)


def progress_console() -> Console:
    """Return a console on standard error; its `is_terminal` follows this module's `is_terminal`."""
    return _console(stderr=True)


def table_of(
    title: str,
    heads: Iterable[str],
    rows: Iterable[Iterable[str]] = (),
    left: Container[str] = ("",),
) -> Table:
    """Return a table with right-aligned columns, except those in `left`; cells are no markup."""
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _console(*, stderr: bool) -> Console:
    from rich.console import Console  # noqa: PLC0415

    if is_terminal(sys.stderr if stderr else sys.stdout):
        return Console(stderr=stderr)
    width = None if "COLUMNS" in os.environ else _WIDTH_OF_A_FILE
    # Do not wrap sentences, so that a search for ε also finds its terms in the same line.
    return Console(stderr=stderr, width=width, force_terminal=False, soft_wrap=True)


@contextmanager
def status_when_slow(message: str) -> Iterator[None]:
    """Show a spinner on a terminal; elsewhere log a line every half minute.

    Args:
        message: name of the operation.
    """
    console, began = progress_console(), time.monotonic()
    if console.is_terminal:
        with console.status(f"{message} …"):
            yield
        return
    with logging_each_half_minute(
        lambda: f"{message}: {time.monotonic() - began:.0f} seconds so far"
    ):
        yield


@contextmanager
def logging_each_half_minute(line: Callable[[], str]) -> Iterator[None]:
    """Log `line()` every half minute while the block runs."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_QUIET):
            log.info("%s", line())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def every_half_minute(message: str) -> Callable[[str], None]:
    """Return a function that logs "message: line", at most once every half minute."""
    last = time.monotonic()

    def tell(line: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _QUIET:
            log.info("%s: %s", message, line)
            last = time.monotonic()

    return tell


@contextmanager
def quietly(heard: list[str] | None = None) -> Iterator[None]:
    """Hide transformers' progress bars, warnings and messages while the block runs.

    Args:
        heard: list to which the warnings are added.
    """
    from transformers.utils import logging as theirs  # noqa: PLC0415  (slow)

    verbosity, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    logger = logging.getLogger("transformers")
    handlers, propagate = logger.handlers, logger.propagate
    lines = [] if heard is None else heard
    logger.handlers, logger.propagate = [_Heard(lines)], False
    theirs.set_verbosity(logging.ERROR if heard is None else logging.WARNING)
    theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        # Some progress bars ignore the switch above, so redirect standard error.
        with warnings.catch_warnings(record=True) as caught, redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore" if heard is None else "always")
            for kind in (DeprecationWarning, FutureWarning):  # meant for library developers
                warnings.simplefilter("ignore", kind)
            yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        theirs.set_verbosity(verbosity)
        if bars:
            theirs.enable_progress_bar()  # type: ignore[no-untyped-call]
    lines += [str(warning.message) for warning in caught]


@contextmanager
def logging_warnings() -> Iterator[None]:
    """Like `quietly`, but log each warning in one line if the block ends without an error."""
    heard: list[str] = []
    with quietly(heard):
        yield
    for line in dict.fromkeys(" ".join(words.split()) for words in heard):
        log.warning("%s", line[:_LONGEST])


class _Heard(logging.Handler):
    """Collects log messages."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
