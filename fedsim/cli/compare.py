"""`fedsim compare`: compare runs, or a grid of runs over several values."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
import typer
from typer.core import TyperCommand

from fedsim.errors import ConfigError
from fedsim.utils.terminal import table_console

if TYPE_CHECKING:
    from fedsim.sweep.cells import Cell
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
        list[str] | None,
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
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY.PATH=VALUE", help="Override a key in all configs; repeatable."
        ),
    ] = None,
    grid: GridOption = "in-process",
    workers: Workers = None,
    address: Address = "",
    out: Annotated[Path, typer.Option(help="Folder for the runs and the comparison.")] = Path(
        "runs/comparison"
    ),
) -> None:
    """Compare several runs, or a grid of runs, in one table and one picture."""
    variations = list(vary or [])
    if epsilon:
        variations.append(f"privacy.epsilon={','.join(epsilon)}")
    runner = runner_of(grid, workers, address)
    if budget or tuned or seeds is not None:
        cells = _cells(sources, variations, overrides or [], budget or [])
        status = _measure(cells, out, tuned or [], seeds or 1, runner)
    else:
        status = _sweep(sources, out, variations, overrides or [], runner)
    typer.echo(f"Report: {out / 'comparison.html'}")
    if status:
        raise typer.Exit(status)


def _sweep(
    sources: list[Path], out: Path, variations: list[str], overrides: list[str], runner: Runner
) -> int:
    from fedsim.report.comparison import comparison_tables
    from fedsim.sweep.compare import sweep

    result = sweep(sources, out, vary=variations, overrides=overrides, runner=runner)
    for table in comparison_tables(result.comparison):
        table_console().print(table.rich())
    heads = {"budget spent": "Stopped", "halted": "Stopped", "diverged": "Diverged"}
    for outcome in result.outcomes:
        if outcome.ending != "finished":
            head = heads.get(outcome.ending, "Failed")
            typer.echo(f"{head}: {outcome.name}: {outcome.reason}", err=True)
    endings = {outcome.ending for outcome in result.outcomes}
    if endings & {"failed", "wrong input", "halted"}:
        return FAILED
    return BUDGET_SPENT if "budget spent" in endings else 0


def _cells(
    sources: list[Path], variations: list[str], overrides: list[str], budgets: list[str]
) -> list[Cell]:
    from fedsim.sweep.cells import expand, parse_variation
    from fedsim.sweep.measure import with_budgets

    for source in sources:
        if source.is_dir():
            raise ConfigError(
                f"compare: {source}: --budget, --tune and --seeds need configs, not run folders"
            )
    varied = [parse_variation(text) for text in variations]
    cells = [cell for source in sources for cell in expand(source, varied, overrides)]
    return with_budgets(cells, budgets) if budgets else cells


def _measure(cells: list[Cell], out: Path, tuned: list[str], seeds: int, runner: Runner) -> int:
    from fedsim.report.comparison_folder import write_grid
    from fedsim.report.differences import differences_table
    from fedsim.report.grid_result import grid_table
    from fedsim.sweep.cells import parse_variation
    from fedsim.sweep.measure import measure
    from fedsim.utils.locks import sole_writer

    keys = [parse_variation(text, "--tune") for text in tuned]
    with sole_writer(out):
        result = measure(cells, out, keys=keys, seeds=seeds, runner=runner)
        write_grid(result, out)
    table_console().print(grid_table(result).rich())
    if (pairs := differences_table(result)) is not None:
        table_console().print(pairs.rich())
    failures = [reason for line in result.lines for reason in line.failures]
    stopped = [reason for line in result.lines for reason in line.stopped]
    for what, reasons in (("Stopped", stopped), ("Failed", failures)):
        for reason in reasons:
            typer.echo(f"{what}: {reason}", err=True)
    if failures or any(line.num_halted for line in result.lines):
        return FAILED
    return BUDGET_SPENT if stopped else 0


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
