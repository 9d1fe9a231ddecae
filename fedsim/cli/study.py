"""`fedsim study`: recompute figures, tables and claims of the papers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsim.errors import ConfigError

_OPTIONS = {"epsilons": "--epsilon", "budgets": "--budget", "cohorts": "--cohort"}


def study_command(
    *,
    name: Annotated[
        str | None, typer.Argument(help="Name of the study; --list prints all names.")
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="Print the names of all studies, one per line.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Compute fewer points; takes seconds.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results (default: runs/studies/NAME).")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Only for tradeoffs: train adapters of this model (folder, GGUF file or hub id)."
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Texts to train on instead of the built-in ones, such as JSON lines. For studies "
            "tradeoffs, group-size, estimate-and-double-text, mechanisms and records-per-user. "
            "Study server-step adds them to the built-in texts and takes several files. The "
            "options below are for the same studies.",
        ),
    ] = None,
    user_column: Annotated[
        str | None, typer.Option(help="Column of --data with the user (default: user).")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Column of --data with the text (default: text).")
    ] = None,
    epsilon: Annotated[
        list[str] | None, typer.Option(metavar="E ...", help="Values of ε to compare.")
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="B ...",
            help="Expected gradients per round to compare (tradeoffs, group-size).",
        ),
    ] = None,
    cohort: Annotated[
        list[str] | None,
        typer.Option(metavar="N ...", help="Cohort sizes to compare (server-step)."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds per run.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Seeds per line of the table; lines are paired by seed."),
    ] = None,
) -> None:
    """Recompute a figure, a table or a claim of the papers; write a table and a picture.

    To resume an interrupted study, give the same command again.
    """
    from fedsim.registry import names, resolve

    if listing:
        for known in names("studies"):
            typer.echo(known)
        return
    if name is None:
        raise ConfigError(f"study: no name; known: {', '.join(names('studies'))}")
    run = resolve("studies", name, "study")
    all_options: dict[str, Any] = {
        "model": model,
        "data": tuple(data or ()),
        "user_column": user_column,
        "text_column": text_column,
        "epsilons": _numbers("--epsilon", epsilon or []),
        "budgets": _numbers("--budget", budget or []),
        "cohorts": _numbers("--cohort", cohort or []),
        "rounds": rounds,
        "seeds": seeds,
    }
    options = {key: value for key, value in all_options.items() if value not in (None, ())}
    _check_taken(name, options, getattr(run, "takes", ()))
    run(out or Path("runs") / "studies" / name, quick=quick, **options)


def _check_taken(name: str, options: Iterable[str], takes: Sequence[str]) -> None:
    """Raise `ConfigError` for an option that the study does not take."""
    for key in options:
        if key not in takes:
            known = ", ".join(_spelled(option) for option in takes)
            raise ConfigError(
                f"{_spelled(key)}: not an option of {name}, which takes "
                f"{known or 'only --quick and --out'}"
            )


def _spelled(key: str) -> str:
    return _OPTIONS.get(key, f"--{key.replace('_', '-')}")


def _numbers(option: str, texts: Sequence[str]) -> tuple[float, ...]:
    """Parse numbers separated by spaces or commas: `1 4` or `1,4`."""
    numbers = []
    for text in (part for typed in texts for part in typed.split(",")):
        try:
            numbers.append(float(text))
        except ValueError:
            raise ConfigError(f"{option} {text}: must be a number, such as 8") from None
    return tuple(numbers)
