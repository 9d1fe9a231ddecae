"""`fedsim push`: give a trained model away, with its promise and nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsim.cli.output import RunDir
from fedsim.utils.terminal import status_when_slow


def push_command(
    run_dir: RunDir,
    repo: Annotated[str, typer.Argument(metavar="REPO", help="OWNER/NAME on the hub.")],
    *,
    merged: Annotated[
        bool, typer.Option("--merged", help="The whole model where there is an adapter, too.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository public; private by default.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Delete what else REPO has, of whatever kind, but its licence."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would leave this machine; send nothing.")
    ] = False,
) -> None:
    """Upload a run's adapter (or model), its card and its privacy.json, and no other file.

    What REPO has of an older model is deleted; its history keeps it.
    """
    from fedsim.runner.push import check_repo, parcel, send

    check_repo(repo)
    found = parcel(run_dir, merged=merged)
    for path in found.files:
        typer.echo(f"{path.stat().st_size:>13,}  {path.name}")
    typer.echo(found.statement)
    if found.note:
        typer.echo(found.note)
    if dry_run:
        older = "all else there but a licence" if replace else "what an older model left there"
        typer.echo(
            f"Nothing was sent. Without --dry-run these {len(found.files)} files go to {repo}, and "
            f"{older} is deleted."
        )
        return
    with status_when_slow("sending"):
        address, deleted = send(found, repo, public=public, replace=replace)
    typer.echo(f"{address}{'; deleted there: ' if deleted else ''}{', '.join(deleted)}")
