"""What commands share: options and the closing lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.errors import ConfigError
from fedsim.utils.json_text import read_json

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY.PATH=VALUE", help="Override one key of the config; repeatable."
    ),
]
ConfigFile = Annotated[Path, typer.Argument(help="The run's config, a TOML file.")]
RunOut = Annotated[
    Path | None, typer.Option("--out", help="The run folder (default: runs/NAME, for a NAME.toml).")
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue the run in --out; start it if there is none yet."),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run's folder.")]


def check_out(path: Path, given: str = "--out", key: str | None = None) -> None:
    """Raise `ConfigError` where a file must not be written, before what it is for is computed.

    Args:
        path: of the file.
        given: the option that names it, for the message.
        key: of the JSON object that the command writes; a file of something else stays.
    """
    if path.is_dir():
        raise ConfigError(f"{given} = {path}: is a folder; give a file")
    if key is not None and path.exists() and not _has(path, key):
        raise ConfigError(f"{given} = {path}: exists, and is no earlier answer; give another name")
    taken = next((parent for parent in path.parents if parent.exists()), None)
    if taken is not None and not taken.is_dir():
        raise ConfigError(f"{given} = {path}: {taken} is a file; give another place")


def _has(path: Path, key: str) -> bool:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and key in content


def say_what_came_out(folder: Path) -> None:
    """Print the promise, the utility and where model and report are."""
    from fedsim.report.schema import load_report
    from fedsim.report.wording import outcome_text

    typer.echo(outcome_text(folder, load_report(folder)))
