"""`fedsim bench`: how long things take on this machine, beside a reference."""

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
    # Benchmarks download nothing, but networks named like one on the hub would be looked up there:
    # half a minute each without a network.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from fedsim.errors import ConfigError
    from fedsim.registry import names, resolve
    from fedsim.utils.machine import keep_freed_memory, machine, versions

    # All are resolved before the first runs: a typing error in the last costs no minutes.
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
                typer.echo(f"Left out: {error}", err=True)  # of all, one that cannot run here
    if as_json:
        answer = {"machine": machine(), "versions": versions(), "rows": rows}
        typer.echo(json.dumps(answer))
        return
    table_console().print(_table(rows))
    typer.echo(", ".join(f"{name} {value}" for name, value in {**machine(), **versions()}.items()))


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a line a row; columns are what any row has, but for the details."""
    columns = dict.fromkeys(key for row in rows for key in row if key != "details")
    words = {key for row in rows for key in row if not isinstance(row[key], int | float | None)}
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    return table_of("Median wall-clock seconds", columns, cells, left=words)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
