"""A sign of life on standard error for what takes longer than two seconds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def status_when_slow(message: str) -> Iterator[None]:
    """Show a spinner on standard error after two seconds, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    status = console.status(message)
    timer = threading.Timer(2.0, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # else a timer that just fired would start what stop() has stopped
        status.stop()
