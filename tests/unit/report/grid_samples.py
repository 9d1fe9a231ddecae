"""Measured grids of realistic size for the tests of their picture and page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedsim.report.attack_report import AttackReport
from fedsim.report.differences import differences
from fedsim.report.grid_result import (
    CellResult,
    ComparedRun,
    GridResult,
    Tuning,
    comparison_notes,
    with_reports,
)
from fedsim.report.intervals import interval
from fedsim.report.schema import RoundMetrics, RunReport
from tests.unit.report.report_samples import non_private, privacy

EPSILONS, BUDGETS = ("1", "4", "16"), ("32", "128")


def line(
    source: str = "uls",
    *,
    losses: Sequence[float] = (3.02, 3.05, 3.0),
    promised: bool = True,
    failures: tuple[str, ...] = (),
    **settings: str,
) -> CellResult:
    """Return a line of seeds 0, 1, …; without losses, of runs of which none ended."""
    name = ",".join([source, *(f"{key}={value}" for key, value in settings.items())])
    bare = CellResult(
        name=name,
        source=source,
        strategy="uls" if promised else "non-private",
        settings=settings,
        chosen={},
        failures=failures,
    )
    if not losses:
        return bare
    epsilon = 0.9995 * float(settings.get("epsilon", 8))
    promise = privacy(epsilon=epsilon) if promised else non_private()
    good = [loss for loss in losses if math.isfinite(loss)]
    return bare.model_copy(
        update={
            "chosen": {"learning_rate": "0.1"},
            "privacy": promise,
            "budget": 1.01 * float(settings.get("budget", 64)),
            "rounds": 100,
            "seeds": tuple(range(len(losses))),
            "losses": tuple(losses),
            "loss": interval(good),
            "accuracy": interval([0.5 - loss / 10 for loss in good]),
            "start": 3.3,
            "averaged": tuple(seed for seed, loss in enumerate(losses) if math.isfinite(loss)),
            "num_diverged": len(losses) - len(good),
            "seconds": 12.5,
        }
    )


def compared(
    *runs: tuple[str, RunReport, Sequence[RoundMetrics]],
    attacks: Mapping[str, AttackReport] | None = None,
) -> GridResult:
    """Return the comparison of single runs, each with its label and metrics."""
    lines = []
    for label, report, metrics in runs:
        run = ComparedRun(
            report=report,
            evaluated=tuple(line for line in metrics if line.held_out),
            attack=(attacks or {}).get(label),
        )
        bare = CellResult(
            name=label,
            source=label,
            strategy=report.name,
            settings={},
            chosen={},
            seeds=(0,),
            run=run,
        )
        lines.append(with_reports(bare, [report]))
    notes = comparison_notes([report for _, report, _ in runs])
    return GridResult(lines=tuple(lines), notes=tuple(notes))


def grid() -> GridResult:
    """Return 3 configs x 3 ε x 2 budgets: one line failed, one diverged, one in part."""
    lines = []
    for number, source in enumerate(("uls", "els", "plain")):
        for epsilon in EPSILONS:
            for budget in BUDGETS:
                gain = 0.3 * math.log10(float(budget)) + 0.1 * math.log(float(epsilon))
                mean = 2.35 if source == "plain" else 3.4 - gain + 0.12 * number
                lines.append(
                    line(
                        source,
                        losses=(mean - 0.02, mean + 0.01, mean + 0.03),
                        promised=source != "plain",
                        epsilon=epsilon,
                        budget=budget,
                    )
                )
    at = {one.name: number for number, one in enumerate(lines)}
    lines[at["uls,epsilon=1,budget=32"]] = line(
        losses=(),
        failures=("uls,epsilon=1,budget=32: no trial gave a finite loss: diverged",),
        epsilon="1",
        budget="32",
    )
    lines[at["els,epsilon=1,budget=32"]] = line(
        "els", losses=(math.nan,) * 3, epsilon="1", budget="32"
    )
    lines[at["uls,epsilon=16,budget=128"]] = line(
        losses=(2.4, math.nan, 2.44), epsilon="16", budget="128"
    )
    tuning = Tuning(
        keys=("learning_rate",),
        runs=36,
        gradients=123_456,
        seconds=61.0,
        tried={one.name: {"0.1": 3.0, "1": math.nan} for one in lines},
        statement="learning_rate chosen for each line by held-out loss.",
    )
    return GridResult(
        lines=tuple(lines),
        seeds=(0, 1, 2),
        differences=differences(lines),
        tuning=tuning,
        notes=("Together.",),
    )
