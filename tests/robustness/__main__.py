"""`python -m tests.robustness`: kills, full disks, hostile files, long runs; what was lost."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.robustness.outcome import Outcome, Part

PARTS = {
    "kills": "tests.robustness.kills.kills",
    "faults": "tests.robustness.faults.faults",
    "fuzz": "tests.robustness.fuzzing.fuzz",
    "dirty": "tests.robustness.dirty.dirty",
    "long-run": "tests.robustness.long_run",
}
"""Modules with `run(folder, seconds, seed) -> Outcome`, imported when their turn comes."""

ARCHITECTURES = "architectures"
"""No part: it says what there is as well, and takes names."""

log = logging.getLogger("tests.robustness")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART]...",
            help=f"All of: {', '.join(PARTS)}. Or: architectures [NAME]...",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="A part may take about so long.")] = 900.0,
    kills: Annotated[int, typer.Option(min=1, help="Kills of the part kills.")] = 100,
    seed: Annotated[int, typer.Option(help="What random moments are drawn from.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="A JSON file for the outcome, or JSON lines.")
    ] = None,
) -> None:
    """Torture runs and count what is lost: exit status 0 if that is nothing, else 1."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    if parts and parts[0] == ARCHITECTURES:
        raise typer.Exit(1 if _architectures(parts[1:], out) else 0)
    names = parts or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: expected of {', '.join(PARTS)}")
    options: Mapping[str, Mapping[str, int]] = {"kills": {"kills": kills}}
    outcomes = []
    for name in names:
        log.info("%s: at most about %.0f s", name, seconds)
        outcomes.append(_carried_out(name, seconds, seed, options.get(name, {})))
        for loss in outcomes[-1].losses:
            log.info("LOST %s: %s", name, loss)
    Console(width=None if sys.stdout.isatty() else 100).print(_table(outcomes))
    lost = sum(len(outcome.losses) for outcome in outcomes)
    typer.echo(f"{lost} lost.")
    if out is not None:
        rows = [
            {"name": o.name, "counts": dict(o.counts), "losses": list(o.losses)} for o in outcomes
        ]
        out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    raise typer.Exit(1 if lost else 0)


def _architectures(names: Sequence[str], out: Path | None) -> bool:
    """Try architectures of transformers, by default all; return whether one failed."""
    sweep = import_module("tests.robustness.architectures")
    if unknown := sorted({*names} - {*sweep.NAMES}):
        raise typer.BadParameter(f"{', '.join(unknown)}: transformers has no such architecture")
    rows = sweep.sweep(names or sweep.NAMES, out)
    typer.echo(sweep.markdown(rows))
    return any(row.failures for row in rows)


def _carried_out(name: str, seconds: float, seed: int, options: Mapping[str, int]) -> Outcome:
    run: Part = import_module(PARTS[name]).run
    with tempfile.TemporaryDirectory(prefix=f"torture-{name}-") as folder:
        return run(Path(folder).resolve(), seconds, seed, **options)


def _table(outcomes: list[Outcome]) -> Table:
    table = Table("part", "tried", "times", "lost")
    for outcome in outcomes:
        lost = str(len(outcome.losses))
        for number, (what, count) in enumerate(sorted(outcome.counts.items())):
            first = number == 0
            table.add_row(outcome.name if first else "", what, str(count), lost if first else "")
    return table


if __name__ == "__main__":
    app()
