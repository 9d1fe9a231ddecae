"""`fedsim flower`: the run that `fedsim run` does, carried out by Flower's own runtimes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.output import ConfigFile, Resume, RunOut, say_what_came_out
from fedsim.errors import ConfigError

if TYPE_CHECKING:
    from fedsim.config import Config

_FAILED = 1


def flower_command(
    config: ConfigFile,
    out: RunOut = None,
    resume: Resume = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of SuperNodes: to simulate, or with --superlink to wait for (default: "
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
    """Do what `fedsim run` does through Flower's `flwr run`: simulated, or on a SuperLink."""
    from fedsim.config import load_config
    from fedsim.grids.flower_command import FlowerCommandError
    from fedsim.grids.flower_run import FlowerRun, FlowerRunError, run_on_superlink, run_simulated
    from fedsim.runner.folder import RunFolder

    read = load_config(config)
    folder = RunFolder(out or Path("runs") / config.stem)
    folder.check(read, resume)
    resume = resume and folder.config.exists()
    run = FlowerRun(config, folder.path, resume, workers or read.executor.workers)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what Ctrl-C cleans up, kill does
    try:
        if superlink:
            _check_that_others_find(read)
            run_on_superlink(run, superlink, _show)
        else:
            run_simulated(run, read.executor, _show)
    except (FlowerRunError, FlowerCommandError) as error:
        typer.echo(f"Failed: {error}", err=True)
        raise typer.Exit(_FAILED) from None
    except KeyboardInterrupt:
        typer.echo(f"Stopped; take the run up with --resume --out {folder.path}", err=True)
        raise typer.Exit(_FAILED) from None
    if not folder.report.exists():
        typer.echo(
            f"Failed: Flower reports success, but {folder.report} is not there; --out must be on "
            "a disk that this machine and the SuperLink's share",
            err=True,
        )
        raise typer.Exit(_FAILED)
    say_what_came_out(folder.path)


def _show(line: str) -> None:
    typer.echo(line, err=True)


def _check_that_others_find(config: Config) -> None:
    """Raise `ConfigError` for relative paths: SuperLink and SuperNodes work in other folders."""
    shared = config.privacy.shared
    if shared is not None and not Path(shared.ledger).expanduser().is_absolute():
        raise ConfigError(
            f"privacy.shared.ledger = {shared.ledger!r}: on a SuperLink give an absolute path of a "
            "disk that all runs share"
        )
    for field, value in (
        ("data.source", config.data.source),
        ("model.name_or_path", config.model.name_or_path),
        ("model.adapter", config.model.adapter),
    ):
        if value is not None and not Path(value).is_absolute() and Path(value).exists():
            raise ConfigError(
                f"{field} = {value!r}: on a SuperLink give the absolute path, "
                f"{Path(value).resolve()}, of a disk that all machines share"
            )
