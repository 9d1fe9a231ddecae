"""The demo: what user-level privacy costs and what it prevents, on real text, in one command."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import typer

from fedsim.attacks.folder import write_attack
from fedsim.attacks.user_inference import attack_run
from fedsim.report.attack_table import attacked_name
from fedsim.report.grid_page import grid_tables
from fedsim.report.grid_result import GridResult
from fedsim.report.wording import decimal_text, epsilon_text, percent_text
from fedsim.sweep.compare import compare
from fedsim.utils.terminal import table_console

CONFIGS = ("demo-private.toml", "demo-non-private.toml")
SAMPLES = 4  # texts of a user that the attacker has


def run(out: Path) -> None:
    """Train both configs, attack both models; print the tables, what they say and the paths."""
    with as_file(files("fedsim.experiments") / "configs") as folder:
        configs = [folder / name for name in CONFIGS]
        compare(configs, out)
        for config in configs:
            trained = out / config.stem
            write_attack(attack_run(trained, samples=[SAMPLES]), trained / "attack")
        comparison = compare(configs, out)  # reads the finished runs, now with their attacks
    for table in grid_tables(comparison).values():
        table_console().print(table.rich())
    typer.echo("\n".join(findings(comparison)))
    typer.echo(f"Report: {out / 'comparison.html'}   Picture: {out / 'comparison.png'}")


def findings(comparison: GridResult) -> list[str]:
    """Return what the numbers say: the share of the gain that stays, and AUROC without and with.

    Args:
        comparison: the private run, then the one without privacy, both attacked.
    """
    private, plain = (run.report for run in comparison.runs.values())
    start = plain.utility.initial.loss
    gain, whole = (start - report.utility.final.loss for report in (private, plain))
    lines = [
        f"Held-out loss falls by {decimal_text(whole)} nats without privacy, and by "
        f"{decimal_text(gain)} with: privacy at ε = {epsilon_text(private.privacy.epsilon)} keeps "
        f"{percent_text(gain / whole)} of the gain."
    ]
    for protected, found in zip(*(attack.groups for _, attack in comparison.attacks), strict=True):
        before, after = found.measured[0].auroc, protected.measured[0].auroc
        lines.append(
            f"Attack on {attacked_name(found)}: AUROC {decimal_text(before)} without privacy, "
            f"{decimal_text(after)} with (0.5 is guessing)."
        )
    return lines
