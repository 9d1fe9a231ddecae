"""`fedsim audit`: lower bounds on ε, of a run by canaries, or of fedsim's own mechanisms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedsim.cli.output import Json, Overrides, check_out
from fedsim.utils.terminal import progress_console, status_when_slow, table_console

if TYPE_CHECKING:
    from fedsim.audit.real_run import RunAudit

_FILE = "audit.json"


def audit_command(  # noqa: PLR0917 (each is an option)
    config: Annotated[
        Path | None,
        typer.Argument(
            help="A config, or a run's folder (default: audit fedsim's own mechanisms)."
        ),
    ] = None,
    canaries: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=1_000_000,
            help="Number of canary users (default: 1000); each is in or out by a fair coin.",
        ),
    ] = None,
    black_box: Annotated[
        bool,
        typer.Option(
            "--black-box",
            help="Canaries are users who have texts; the attacker sees only losses of texts, "
            "before and after training.",
        ),
    ] = False,
    bound: Annotated[
        str | None,
        typer.Option(
            help="With --black-box: the bound, f-dp or steinke (default: f-dp); choose it before "
            "you see a result."
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="With --black-box: temperature at which the tokens of canaries are drawn "
            "(default: inf, all tokens equally likely)."
        ),
    ] = None,
    overrides: Overrides = None,
    coin_seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of canaries and their coins; another seed is a fresh audit (default: 0)."
        ),
    ] = None,
    repetitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Without CONFIG: number of audits of each mechanism; 100 show whether the stated "
            "confidence holds (default: 1).",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Without CONFIG: use fewer trials.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for audit.json (default: runs/audit).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute a lower bound on ε by an attack; exit with 1 if it refutes the claimed ε."""
    from fedsim.config import load_config
    from fedsim.errors import ConfigError
    from fedsim.utils.files import write_atomically

    if config is None and overrides:
        raise ConfigError("--set: there is no CONFIG to lay it over")
    if config is not None and (quick or repetitions is not None):
        raise ConfigError("--repetitions, --quick: are for fedsim's own mechanisms, without CONFIG")
    if config is None and black_box:
        raise ConfigError("--black-box: there is no run to audit; give a CONFIG or a run's folder")
    if config is None and (canaries is not None or coin_seed is not None):
        raise ConfigError("--canaries, --coin-seed: there is no run to audit; give a CONFIG")
    if not black_box and (bound is not None or temperature is not None):
        raise ConfigError("--bound, --temperature: are for --black-box; give that, or neither")
    path = (out or Path("runs/audit")) / _FILE
    check_out(path)
    console = progress_console() if as_json else table_console()
    number = 1000 if canaries is None else canaries
    if config is not None:
        file = config / "config.toml" if config.is_dir() else config
        loaded = load_config(file, overrides or [])
        if black_box:
            from fedsim.audit.black_box import audit_black_box, method_of

            audit = audit_black_box(
                loaded,
                number,
                method=method_of(bound or "f-dp"),
                temperature=float("inf") if temperature is None else temperature,
                coin_seed=coin_seed or 0,
            )
        else:
            from fedsim.audit.real_run import audit_run

            audit = audit_run(loaded, number, coin_seed=coin_seed or 0)
        answer, holds = {"config": str(file), **audit.to_json()}, audit.holds
        _show_run(audit, console)
    else:
        answer, holds = _of_mechanisms(repetitions or 1, quick, console)
    write_atomically(path, json.dumps(answer, indent=2) + "\n")
    typer.echo(json.dumps(answer) if as_json else f"Audit: {path}")
    if not holds:
        raise typer.Exit(1)


def _show_run(audit: RunAudit, console: Console) -> None:
    from fedsim.accounting.rounding import text_down, text_up

    bound = audit.bound
    who = "whoever the accountant" if audit.method == "steinke" else "if it is this mechanism"
    refuted = "would have refuted" if audit.could_refute else "could not have refuted"
    console.print(f"Claimed: {audit.statement}", markup=False)
    console.print(
        f"Shown: the ε at δ = {text_up(bound.delta)} under the {audit.relation} relation is at "
        f"least {text_down(bound.epsilon)}, with {bound.confidence:.0%} confidence, {who}: "
        f"{bound.correct} of {bound.guesses} guesses about {bound.canaries} canaries "
        f"were right (bound: {audit.method}; seen: {audit.attack}).",
        markup=False,
    )
    console.print(
        f"With these coins no scores could have shown more than {text_up(audit.perfect, 4)}; that "
        f"{refuted} the claim.",
        markup=False,
    )
    if audit.p_value is not None:
        console.print(
            f"Under the claimed trade-off curve as many right guesses, or more, have a probability "
            f"of at most {text_up(audit.p_value, 3)}."
        )
    for sentence in audit.assumptions:
        console.print(f"- {sentence}", markup=False)


def _of_mechanisms(repetitions: int, quick: bool, console: Console) -> tuple[dict[str, Any], bool]:
    """Audit ULS and ELS; return JSON and whether claims hold as often as stated."""
    from fedsim.audit import mechanism, tables

    with status_when_slow("playing real rounds with and without a target"):
        trials = mechanism.TRIALS // (25 if quick else 1)
        audits = mechanism.audit_settings(
            delta=mechanism.DELTA, trials=trials, repetitions=repetitions
        )
    console.print(tables.mechanisms(audits))
    console.print(tables.TERMS)
    return tables.to_json(audits), tables.all_well(audits)
