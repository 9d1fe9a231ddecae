"""`fedsim push`: upload a trained model with its model card and privacy.json only."""

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
        bool,
        typer.Option("--merged", help="Upload the whole model, even if the run has an adapter."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="List the files that would be uploaded; upload nothing."),
    ] = False,
) -> None:
    """Upload a run's adapter (or model) with its model card and privacy.json, and no other file.

    A new repository is private.
    """
    from fedsim.runner.push import parcel, send

    files, words = parcel(run_dir, merged=merged)
    for path in files:
        typer.echo(f"{path.stat().st_size:>13,}  {path.name}")
    typer.echo(words)
    if dry_run:
        typer.echo(f"Nothing was sent. Without --dry-run these files go to {repo}.")
        return
    with status_when_slow("sending"):
        typer.echo(send(files, repo))
