"""What commands share: options and the closing lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Lay a value over the config."),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run's folder.")]


def check_out(path: Path, given: str = "--out") -> None:
    """Raise `ConfigError` where no file can be written, before what it is for is computed."""
    if path.is_dir():
        raise ConfigError(f"{given} = {path}: is a folder; give a file")
    taken = next((parent for parent in path.parents if parent.exists()), None)
    if taken is not None and not taken.is_dir():
        raise ConfigError(f"{given} = {path}: {taken} is a file; give another place")


def say_what_came_out(folder: Path) -> None:
    """Print the promise, the utility and where model and report are."""
    from fedsim.report.schema import load_report
    from fedsim.report.wording import outcome_text

    typer.echo(outcome_text(folder, load_report(folder)))
