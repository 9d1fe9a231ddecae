"""What commands share: options, a sign of life, and the closing lines."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live
from rich.spinner import Spinner

from fedsim.utils.terminal import progress_console

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Lay a value over the config."),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run's folder.")]


@contextmanager
def status_when_slow(message: str) -> Iterator[None]:
    """Show a spinner on standard error after two seconds, if that is a terminal."""
    console = progress_console()
    if not console.is_terminal:
        yield
        return
    # What is logged meanwhile goes past it: rich would put its own stream in the place of standard
    # error, also while another thread has put one there, and leave the wrong one.
    status = Live(
        Spinner("dots", text=message),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    timer = threading.Timer(2.0, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # else a timer that just fired would start what stop() has stopped
        status.stop()


def say_what_came_out(folder: Path) -> None:
    """Print the promise, the utility and where model and report are."""
    from fedsim.report.schema import load_report
    from fedsim.report.wording import outcome_text

    typer.echo(outcome_text(folder, load_report(folder)))
