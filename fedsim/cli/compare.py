"""`fedsim compare`: compare runs, or a grid of runs over several values."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
import typer
from typer.core import TyperCommand

from fedsim.cli.output import Overrides
from fedsim.errors import ConfigError
from fedsim.utils.terminal import table_console

if TYPE_CHECKING:
    from fedsim.sweep.jobs import Runner

FAILED, BUDGET_SPENT = 1, 3
_SEVERAL = ("--epsilon", "--delta", "--budget", "--cohort")


SweepGrid = Literal["in-process", "ray"]
GridOption = Annotated[
    SweepGrid,
    typer.Option(help="in-process: one run after another; ray: parallel runs on Ray."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, help="With --grid ray: maximum number of parallel runs (default: all that fit)."
    ),
]
Address = Annotated[
    str,
    typer.Option(help="With --grid ray: address of a running Ray cluster (default: start one)."),
]


class SeveralNumbers(TyperCommand):
    """A command that reads `--epsilon 2 4 8` as `--epsilon 2 --epsilon 4 --epsilon 8`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option before each number that follows its value."""
        repeated: list[str] = []
        option = ""  # the option that owns the current values
        for previous, argument in pairwise(["", *args]):
            if (named := argument.partition("=")[0]) in _SEVERAL:
                option = named
            elif previous not in _SEVERAL:
                option = option if _are_numbers(argument) else ""
                repeated += [option] if option else []
            repeated.append(argument)
        return super().parse_args(ctx, repeated)


def compare_command(
    *,
    sources: Annotated[
        list[Path], typer.Argument(help="Configs to run, or folders of finished runs.")
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY.PATH=V,V,...",
            help="Run each config with each of these values; repeat for all combinations.",
        ),
    ] = None,
    epsilon: Annotated[
        list[str] | None,
        typer.Option("--epsilon", metavar="E ...", help="Short for --vary privacy.epsilon=E,..."),
    ] = None,
    budget: Annotated[
        list[float] | None,
        typer.Option(
            "--budget",
            metavar="B ...",
            help="Run each config at these expected numbers of gradients per round, or the nearest "
            "that the sampler allows.",
        ),
    ] = None,
    tuned: Annotated[
        list[str] | None,
        typer.Option(
            "--tune",
            metavar="KEY.PATH=V,V,...",
            help="Choose the best of these values of a key, for each line of the table.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of seeds per line, for 95 % intervals."),
    ] = None,
    overrides: Overrides = None,
    grid: GridOption = "in-process",
    workers: Workers = None,
    address: Address = "",
    out: Annotated[Path, typer.Option(help="Folder for the runs and the comparison.")] = Path(
        "runs/comparison"
    ),
) -> None:
    """Compare several runs, or a grid of runs, in one table and one picture."""
    from fedsim.report.grid_page import grid_tables
    from fedsim.sweep.compare import sweep

    result = sweep(
        sources,
        out,
        vary=[*(vary or []), *([f"privacy.epsilon={','.join(epsilon)}"] if epsilon else [])],
        overrides=overrides or [],
        budgets=budget or [],
        tuned=tuned or [],
        seeds=seeds,
        runner=runner_of(grid, workers, address),
    )
    for table in grid_tables(result).values():
        notes = [note for note in table.notes if not note.startswith("Failed: ")]  # said below
        table_console().print(replace(table, notes=notes).rich())
    for line in result.lines:
        diverged = line.run and line.run.report.diverged
        for what, reasons in (
            ("Stopped", line.stopped),
            ("Diverged", [f"{line.name}: {diverged}"] if diverged else []),
            ("Failed", line.failures),
        ):
            for reason in reasons:
                typer.echo(f"{what}: {reason}", err=True)
    typer.echo(f"Report: {out / 'comparison.html'}")
    if any(line.failures or line.num_halted for line in result.lines):
        raise typer.Exit(FAILED)
    if any(line.stopped for line in result.lines):
        raise typer.Exit(BUDGET_SPENT)


def runner_of(grid: SweepGrid, workers: int | None, address: str) -> Runner:
    """Return the runner for `--grid`.

    Raises:
        ConfigError: `workers` or `address` is given without Ray.
    """
    from fedsim.sweep.jobs import one_after_another

    if grid == "ray":
        from fedsim.sweep.ray import OnRay

        return OnRay(address, workers)
    if workers is not None or address:
        raise ConfigError(
            f"--workers {workers}, --address {address!r}: parallel runs need --grid ray"
        )
    return one_after_another


def _are_numbers(text: str) -> bool:
    """Whether the text is numbers separated by commas, or n^-x."""
    try:
        return bool([float(part) for part in text.removeprefix("n^").split(",")])
    except ValueError:
        return False
