"""Where commands print: tables, signs of life; and how libraries are kept from it."""

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

if TYPE_CHECKING:  # who only asks whether there is a terminal need not wait for rich
    from rich.console import Console
    from rich.table import Table

_WIDTH_OF_A_FILE = 200  # columns
_SLOW = 2.0  # seconds until work is slow
_QUIET = 30.0  # seconds without a line in a log

log = logging.getLogger("fedsim")


def is_terminal(stream: TextIO) -> bool:
    """Whether somebody watches a stream on a terminal.

    Not in a file or a pipe, whatever FORCE_COLOR says, which rich asks and notebooks set for what
    they start; nor from a notebook's `!`, which makes a terminal of 80 columns and keeps all that
    is written to it.
    """
    try:
        watched = stream.isatty()
    except (AttributeError, ValueError):  # a stand-in with `write` alone, or closed
        return False
    return watched and "JPY_PARENT_PID" not in os.environ


def table_console() -> Console:
    """Return a console on standard output.

    Where that is no terminal it has 200 columns, unless COLUMNS says otherwise. Rich would take 80,
    and break words to make a table of twelve columns fit.
    """
    return _console(stderr=False)


def progress_console() -> Console:
    """Return a console on standard error, which `is_terminal` only where somebody watches."""
    return _console(stderr=True)


def table_of(title: str, heads: Iterable[str], left: Container[str] = ("",)) -> Table:
    """Return a table without rows, whose columns are of numbers but for those in `left`."""
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head, justify="left" if head in left else "right")
    return table


def _console(*, stderr: bool) -> Console:
    from rich.console import Console  # noqa: PLC0415

    if is_terminal(sys.stderr if stderr else sys.stdout):
        return Console(stderr=stderr)
    width = None if "COLUMNS" in os.environ else _WIDTH_OF_A_FILE
    # A sentence is one line, however long: who looks for an ε finds all that it stands with.
    return Console(stderr=stderr, width=width, force_terminal=False, soft_wrap=True)


@contextmanager
def status_when_slow(message: str) -> Iterator[None]:
    """Show a spinner on standard error after two seconds; log a line every half minute elsewhere.

    Args:
        message: what is being done.
    """
    console = progress_console()
    if not console.is_terminal:
        with _still_at(message):
            yield
        return
    from rich.live import Live  # noqa: PLC0415
    from rich.spinner import Spinner  # noqa: PLC0415

    # What is logged meanwhile goes past it: rich would put its own stream in the place of standard
    # error, also while another thread has put one there, and leave the wrong one.
    status = Live(
        Spinner("dots", text=f"{message} …"),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    timer = threading.Timer(_SLOW, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # else a timer that just fired would start what stop() has stopped
        status.stop()


@contextmanager
def _still_at(message: str) -> Iterator[None]:
    began = time.monotonic()
    with told_when_quiet(lambda: f"{message}: {time.monotonic() - began:.0f} seconds so far"):
        yield


@contextmanager
def told_when_quiet(line: Callable[[], str]) -> Iterator[Callable[[str], None]]:
    """Give what logs a line, and log `line()` after each half minute in which it logged none."""
    said, ended = threading.Event(), threading.Event()

    def watch() -> None:
        while True:
            quiet = not said.wait(_QUIET)
            said.clear()  # before the look at the end, which is set first
            if ended.is_set():
                return
            if quiet:
                log.info("%s", line())

    def tell(words: str) -> None:
        said.set()
        log.info("%s", words)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        ended.set()
        said.set()
        thread.join()


def every_half_minute(message: str) -> Callable[[str], None]:
    """Return what logs "message: line", the first after half a minute and none sooner than that."""
    said = time.monotonic()

    def tell(line: str) -> None:
        nonlocal said
        if time.monotonic() - said >= _QUIET:
            log.info("%s: %s", message, line)
            said = time.monotonic()

    return tell


@contextmanager
def quietly() -> Iterator[None]:
    """Hide transformers' progress bars, warnings and messages; restore everything afterwards.

    Who opens a network so must look whether all of its weights were there.
    """
    from transformers.utils import logging  # noqa: PLC0415  (slow)

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        # Not every bar in there obeys the switch above.
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
