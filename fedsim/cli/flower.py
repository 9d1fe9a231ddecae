"""`fedsim flower`: do the run of `fedsim run` on Flower's own runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsim.cli.output import ConfigFile, Resume, RunOut, say_what_came_out

_FAILED = 1


def flower_command(
    config: ConfigFile,
    out: RunOut = None,
    resume: Resume = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of SuperNodes to simulate, or with --superlink to wait for (default: "
            "executor.workers).",
        ),
    ] = None,
    superlink: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="A running SuperLink (default: start a simulation)."
        ),
    ] = "",
) -> None:
    """Do the run of `fedsim run` through Flower's `flwr run`: simulated, or on a SuperLink."""
    from fedsim.config import load_config
    from fedsim.grids.flower_run import FlowerRunError, run_on_flower
    from fedsim.runner.folder import RunFolder

    read = load_config(config)
    folder = RunFolder(out or Path("runs") / config.stem)
    folder.check(read, resume)
    settings = {
        "config": str(config.absolute()),
        "folder": str(Path.cwd()),
        "out": str(folder.path.absolute()),
        "resume": resume and folder.config.exists(),
        "workers": workers or read.executor.workers,
    }
    try:
        run_on_flower(settings, read.executor, superlink, lambda line: typer.echo(line, err=True))
        if not folder.report.exists():
            raise FlowerRunError(
                f"{folder.report} does not exist; --out must be on a disk that this machine shares "
                "with the SuperLink's machine"
            )
    except FlowerRunError as error:
        typer.echo(f"Failed: {error}", err=True)
        raise typer.Exit(_FAILED) from None
    except KeyboardInterrupt:
        typer.echo(f"Stopped; continue the run with --resume --out {folder.path}", err=True)
        raise typer.Exit(_FAILED) from None
    say_what_came_out(folder.path)
