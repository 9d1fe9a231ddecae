"""`fedsim audit`: measure a lower bound on a run's ε with canary users."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from fedsim.cli.output import Json, Overrides
from fedsim.utils.terminal import progress_console, table_console

if TYPE_CHECKING:
    from fedsim.audit.real_run import RunAudit

_FILE = "audit.json"


def audit_command(  # noqa: PLR0917 (each is an option)
    config: Annotated[Path, typer.Argument(help="A config, or a run's folder.")],
    canaries: Annotated[
        int,
        typer.Option(
            min=2,
            max=1_000_000,
            help="Number of canary users; a fair coin decides whether each is included.",
        ),
    ] = 1000,
    black_box: Annotated[
        bool,
        typer.Option(
            "--black-box",
            help="Use canary users with texts; the attacker sees only the losses of their texts "
            "before and after training.",
        ),
    ] = False,
    bound: Annotated[
        Literal["f-dp", "steinke"] | None,
        typer.Option(
            help="With --black-box: the method of the bound (default: f-dp); choose it before you "
            "see a result."
        ),
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for audit.json (default: runs/audit).", file_okay=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute a lower bound on ε by an attack; exit status 1 if it refutes the claimed ε."""
    from fedsim.audit.black_box import audit_black_box
    from fedsim.audit.real_run import audit_run
    from fedsim.config import load_config
    from fedsim.errors import ConfigError
    from fedsim.utils.files import write_atomically

    if not black_box and bound is not None:
        raise ConfigError("--bound: needs --black-box; give both, or neither")
    path = (out or Path("runs/audit")) / _FILE
    file = config / "config.toml" if config.is_dir() else config
    loaded = load_config(file, overrides or [])
    if black_box:
        method = bound or "f-dp"
        audit = audit_black_box(loaded, canaries, method=method)
    else:
        audit = audit_run(loaded, canaries)
    _show_run(audit, progress_console() if as_json else table_console())
    answer = {"config": str(file), **audit.to_json()}
    write_atomically(path, json.dumps(answer, indent=2) + "\n")
    typer.echo(json.dumps(answer) if as_json else f"Audit: {path}")
    if not audit.holds:
        raise typer.Exit(1)


def _show_run(audit: RunAudit, console: Console) -> None:
    from fedsim.accounting.rounding import text_down, text_up

    bound = audit.bound
    terms = "with any accountant" if audit.method == "steinke" else "assuming this mechanism"
    refuted = "would have refuted" if audit.could_refute else "could not have refuted"
    lines = [
        f"Claimed: {audit.statement}",
        f"Measured: the ε at δ = {text_up(bound.delta)} under the {audit.relation} relation is at "
        f"least {text_down(bound.epsilon)}, with {bound.confidence:.0%} confidence, {terms}: "
        f"{bound.correct} of {bound.guesses} guesses about {bound.canaries} canaries "
        f"were right (bound: {audit.method}; attack: {audit.attack}).",
        f"With these coins, perfect scores would show ε of at least {text_up(audit.perfect, 4)}, "
        f"which {refuted} the claim.",
    ]
    if audit.p_value is not None:
        lines.append(
            "Under the claimed trade-off curve, this many right guesses or more have probability "
            f"at most {text_up(audit.p_value, 3)}."
        )
    for line in (*lines, *(f"- {sentence}" for sentence in audit.assumptions)):
        console.print(line, markup=False)
