"""Options and closing lines that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY.PATH=VALUE", help="Override one key of each config; repeatable."
    ),
]
ConfigFile = Annotated[Path, typer.Argument(help="The run's config, a TOML file.")]
RunOut = Annotated[
    Path | None, typer.Option("--out", help="The run folder (default: runs/NAME for NAME.toml).")
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue the run in --out; start a new one if there is none."),
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A finished run's folder.")]


def say_what_came_out(folder: Path) -> None:
    """Print the guarantee, the utility and the paths of model and report."""
    from fedsim.report.schema import load_report
    from fedsim.report.wording import outcome_text

    typer.echo(outcome_text(folder, load_report(folder)))
