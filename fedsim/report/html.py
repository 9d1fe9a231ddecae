"""Self-contained HTML pages, the privacy statement first: the frame of all, and a run's page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from fedsim.report import wording
from fedsim.report.drawing import page_svg
from fedsim.report.figures import (
    UNCOVERED,
    Axis,
    Level,
    Panel,
    curve,
    epsilon_panel,
    start_levels,
    trade_off_panel,
)
from fedsim.report.schema import (
    Privacy,
    RoundMetrics,
    RunReport,
    Scores,
    is_finite,
    load_metrics,
    save_report,
)
from fedsim.report.style import colour
from fedsim.report.wording import decimal_text, terms_text
from fedsim.utils.files import write_atomically

HTML_FILE = "report.html"
MOST = 200  # points of a curve in a page


def write_reports(run_dir: Path, report: RunReport) -> None:
    """Write `report.html` and then `report.json`: a folder that has the latter is finished.

    Raises:
        ConfigError: `metrics.jsonl` is missing or malformed.
    """
    write_atomically(run_dir / HTML_FILE, render_run(report, load_metrics(run_dir)))
    save_report(run_dir, report)


def _evenly(points: list[Any]) -> list[Any]:
    """Return at most `MOST` of the points, evenly, with the first and the last."""
    if len(points) <= MOST:
        return points
    return [points[number * (len(points) - 1) // (MOST - 1)] for number in range(MOST)]


def render_run(report: RunReport, metrics: Sequence[RoundMetrics]) -> str:
    """Return the page of one run: its promise, its plots, its data, cost, model and versions."""
    return render_page(
        "run.html.jinja",
        report=report,
        panels=run_panels(metrics, report.utility.initial, report.privacy),
        non_finite=sum(line.non_finite or 0 for line in metrics),
    )


def run_panels(metrics: Sequence[RoundMetrics], initial: Scores, privacy: Privacy) -> list[Panel]:
    """Return the panels of one run: losses, ε, accuracy, cohorts, signal over noise, attackers.

    Args:
        metrics: the lines of `metrics.jsonl`.
        initial: utility before the first round, drawn as a dashed line.
        privacy: the promise; its terms stand below the plot of ε. Without a guarantee there is
            no such plot: an ε on the way to none means nothing.
    """
    scored = _evenly([(line.round, line.held_out) for line in metrics if line.held_out])
    trained = _evenly([(line.round, line.train_loss) for line in metrics if line.train_loss])
    clipped = _evenly([(line.round, line.clipped) for line in metrics if line.clipped is not None])
    ratios = [(line.round, line.release_over_noise) for line in metrics if line.release_over_noise]
    epsilons = _evenly([(line.round, line.epsilon) for line in metrics if is_finite(line.epsilon)])
    cohorts = _evenly([(line.round, line.units) for line in metrics if line.units is not None])
    losses = curve("held-out loss", [(at, scores.loss) for at, scores in scored], colour(0))
    same_mean = [(at, scores.unit_loss) for at, scores in scored]
    shares = [(at, 100 * scores.accuracy_top1) for at, scores in scored]
    start = 100 * initial.accuracy_top1
    panels = [
        Panel(
            "loss",
            "Held-out loss",
            UNCOVERED,
            [losses],
            y=Axis("nats a token"),
            levels=start_levels([initial.loss]),
        ),
        Panel(
            "training",
            "Training loss beside held-out loss",
            f"Both count every unit alike, and every example of a unit. {UNCOVERED}",
            [
                curve("cohort's training loss", trained, width=0.7),
                curve("held-out loss, same mean", same_mean, colour(0)),
            ],
            y=Axis("nats a token"),
        ),
        Panel(
            "accuracy",
            "Top-1 accuracy",
            UNCOVERED,
            [curve("top-1 accuracy", shares, colour(2))],
            y=Axis("per cent"),
            levels=[Level(start, f"start {decimal_text(start, 1)} %")] if is_finite(start) else [],
        ),
        Panel(
            "cohort",
            "Cohort size",
            f"Units drawn a round, and how many of them the clip made smaller. {UNCOVERED}",
            [
                curve("drawn", cohorts, colour(3), width=1.0),
                curve("clipped", clipped, colour(4), width=0.7),
            ],
            y=Axis("units", from_zero=True),
        ),
    ]
    if epsilons and privacy.epsilon is not None:
        spent = [curve("ε spent", epsilons, colour(1))]
        panels.insert(1, epsilon_panel(f"{terms_text(privacy)}.", spent))
    if ratios and privacy.noise != "none":
        panels.append(
            Panel(
                "signal",
                "Release over noise",
                "Norm of a round's release over the norm of its noise: from releases alone. "
                f"{terms_text(privacy)}.",
                [curve("release over noise", _evenly(ratios), colour(5), width=1.0)],
                levels=[Level(1.0, "noise alone")],
            )
        )
    if privacy.trade_off is not None:
        bound = ("bound", privacy.trade_off, colour(1), "-")
        panels.append(trade_off_panel(f"{terms_text(privacy)}.", [bound]))
    return panels


def render_page(template: str, **values: object) -> str:
    """Return a page of a template of this package, without scripts and requests."""
    return _environment().get_template(template).render(say=wording, svg=page_svg, **values)


@cache
def _environment() -> Environment:
    """Return the environment that keeps compiled templates."""
    return Environment(
        loader=PackageLoader("fedsim.report"),
        autoescape=select_autoescape(disabled_extensions=["md.jinja"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
