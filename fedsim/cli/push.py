"""`fedsim push`: give a trained model away, with its promise and nothing else."""

from __future__ import annotations

from typing import Annotated

import typer

from fedsim.cli.output import RunDir
from fedsim.utils.terminal import status_when_slow


def push_command(
    run_dir: RunDir,
    repo: Annotated[
        str, typer.Argument(metavar="REPO", help="Repository on the Hugging Face hub, OWNER/NAME.")
    ],
    *,
    merged: Annotated[
        bool, typer.Option("--merged", help="Upload the whole model, also if there is an adapter.")
    ] = False,
    public: Annotated[
        bool, typer.Option("--public", help="Make a new repository public (default: private).")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Delete all other files of REPO, of any kind, but its licence and .gitattributes.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="List the files that would be uploaded; upload nothing."),
    ] = False,
) -> None:
    """Upload a run's adapter (or model) with its model card and privacy.json, and no other file.

    Files of an older model in REPO are deleted; the history of REPO keeps them.
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
