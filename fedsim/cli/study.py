"""`fedsim study`: the papers' figures, tables and claims, recomputed."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Annotated

import typer

from fedsim.errors import ConfigError


def study_command(
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
            help="Only for tradeoffs: train adapters of this model, a folder, GGUF file or hub id."
        ),
    ] = None,
) -> None:
    """Recompute a figure, a table or a claim of the papers; write a table and a picture."""
    from fedsim.registry import names, resolve

    if listing:
        for known in names("studies"):
            typer.echo(known)
        return
    if name is None:
        raise ConfigError(f"study: no name; known: {', '.join(names('studies'))}")
    run = resolve("studies", name, "study")
    options = {} if model is None else {"model": model}
    if model is not None and "model" not in signature(run).parameters:
        raise ConfigError(f"--model {model}: {name} trains no other model; tradeoffs does")
    run(out or Path("runs") / "studies" / name, quick=quick, **options)
