"""The closing lines of a command that ended with a run folder."""

from __future__ import annotations

from pathlib import Path

import typer


def say_what_came_out(folder: Path) -> None:
    """Print the promise, the utility and where model and report are."""
    from fedsim.report.schema import load_report
    from fedsim.report.wording import NOT_COVERED

    report = load_report(folder)
    before, after = report.utility.initial, report.utility.final
    typer.echo(report.privacy.statement)
    if after.tokens:
        scores = f"Held-out loss {before.loss:.4f} -> {after.loss:.4f} nats a token"
        typer.echo(f"{scores} ({NOT_COVERED}).")
    else:
        typer.echo("No text was held out, so no utility was measured; see data.held_out_examples.")
    typer.echo(f"Model: {folder / 'model'}   Report: {folder / 'report.html'}")
