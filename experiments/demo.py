"""The demo: what user-level privacy costs on real text, from one command."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import typer

from fedsim.report.comparison import comparison_table
from fedsim.sweep.compare import compare
from fedsim.utils.terminal import table_console

CONFIGS = ("demo-uls.toml", "demo-els.toml", "demo-non-private.toml")


def run(out: Path) -> None:
    """Run the three configs, print the table and say where the report is."""
    with as_file(files("fedsim.experiments") / "configs") as folder:
        comparison = compare([folder / name for name in CONFIGS], out)
    table_console().print(comparison_table(comparison).rich())
    typer.echo(f"Report: {out / 'comparison.html'}   Picture: {out / 'comparison.png'}")
