"""`fedsim attack`: infer from a finished run's model which users it was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim.cli.output import Json, RunDir
from fedsim.utils.terminal import status_when_slow, table_console, table_of

if TYPE_CHECKING:
    from fedsim.report.attack_report import AttackReport


def attack_command(  # noqa: PLR0917 (each is an option)
    run_dir: RunDir,
    samples: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Number of a user's texts that the attacker has; repeat the option to compare "
            "several numbers (default: 1, 2, 4, … while half of the users have that many).",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="Name or path of the reference model (default: the run's initial model)."
        ),
    ] = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Also attack each checkpoint that the run kept.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write (default: RUN_DIR/attack).", file_okay=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a user-inference attack on a trained model; write JSON, a page and a picture.

    The attack tells users whose text was trained on from users whose text was not.
    """
    from fedsim.attacks.folder import write_attack
    from fedsim.attacks.user_inference import attack_run

    folder = out or run_dir / "attack"
    with status_when_slow("scoring"):
        report = attack_run(
            run_dir, samples=samples or (), reference=reference, checkpoints=checkpoints
        )
    write_attack(report, folder)
    if as_json:
        typer.echo(report.model_dump_json())
        return
    _show(report)
    typer.echo(f"Page: {folder / 'attack.html'}   Picture: {folder / 'attack.png'}")


def _show(report: AttackReport) -> None:
    from fedsim.accounting.rounding import text_up
    from fedsim.report.wording import promised_text

    console = table_console()
    for group in report.groups:
        title = (
            f"{group.name}: {group.users_in} trained, {group.users_out} held out "
            f"({group.left_out_in} and {group.left_out_out} with fewer samples left out)"
        )
        rates = [f"{100 * o.false_positive_rate:g} %" for o in group.measured[0].operating]
        rows = []
        for row in group.measured:
            low, high = row.auroc_interval
            found = [o.true_positive_rate for o in row.operating]
            shown = ["–" if rate is None else f"{rate:.3f}" for rate in found]
            auroc = (f"{row.samples}", f"{row.auroc:.3f}", f"{low:.3f}–{high:.3f}")
            rows.append([row.statistic, *auroc, *shown])
        console.print(table_of(title, ("", "m", "AUROC", "interval", *rates), rows))
    console.print(
        "m: samples per user. Last columns: true positive rate at that false positive rate."
    )
    for state in report.checkpoints if len(report.checkpoints) > 1 else ():
        console.print(f"After round {state.round}: AUROC {state.auroc:.3f}.")
    console.print(f"Guarantee: {promised_text(report.privacy)}.", markup=False)
    if report.bound.auroc is not None:
        console.print(f"It allows an AUROC of up to {text_up(report.bound.auroc, 3)}.")
    console.print(report.bound.reason, markup=False)
    console.print(report.note, markup=False)
