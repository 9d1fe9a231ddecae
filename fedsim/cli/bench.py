"""`fedsim bench`: measure how long operations take on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from fedsim.cli.output import Json
from fedsim.utils.terminal import status_when_slow, table_console, table_of


def bench_command(
    benchmarks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Benchmarks to run (default: all)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run benchmarks on this machine; print the seconds that each case takes."""
    # Benchmarks make no downloads. Without this, a network with the name of a hub model is looked
    # up there: half a minute each on a machine without internet.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from fedsim.errors import ConfigError
    from fedsim.registry import names, resolve
    from fedsim.utils.machine import keep_freed_memory, machine, versions

    # Resolve all names before the first benchmark runs: a mistyped name shows at once.
    chosen = [resolve("benchmarks", name, "bench") for name in benchmarks or names("benchmarks")]
    keep_freed_memory()  # as a run does
    rows: list[Mapping[str, Any]] = []
    with status_when_slow("measuring"):
        for run in chosen:
            try:
                rows += run()
            except ConfigError as error:
                if benchmarks:
                    raise
                typer.echo(f"Left out: {error}", err=True)  # not requested by name: skip it
    if as_json:
        answer = {"machine": machine(), "versions": versions(), "rows": rows}
        typer.echo(json.dumps(answer))
        return
    table_console().print(_table(rows))
    typer.echo(", ".join(f"{name} {value}" for name, value in {**machine(), **versions()}.items()))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with one line per row; its columns are all keys except "details"."""
    columns = dict.fromkeys(key for row in rows for key in row if key != "details")
    words = {key for row in rows for key in row if not isinstance(row[key], int | float | None)}
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    return table_of("Median wall-clock seconds", columns, cells, left=words)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
