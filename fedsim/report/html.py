"""Self-contained HTML pages that begin with the privacy statement; content of a run's page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from fedsim.report import wording
from fedsim.report.drawing import page_svg
from fedsim.report.figures import Axis, Level, Panel, curve, start_levels
from fedsim.report.schema import RoundMetrics, RunReport, is_finite, load_metrics, save_report
from fedsim.report.style import colour, dash, shorten
from fedsim.report.wording import decimal_text
from fedsim.utils.files import write_atomically

HTML_FILE = "report.html"

LabelledRun = tuple[str, RunReport, Sequence[RoundMetrics]]


def write_reports(run_dir: Path, report: RunReport) -> None:
    """Write `report.html` and then `report.json`, which marks the run as finished.

    Raises:
        ConfigError: `metrics.jsonl` is missing or malformed.
    """
    write_atomically(run_dir / HTML_FILE, render_run(report, load_metrics(run_dir)))
    save_report(run_dir, report)


def render_run(report: RunReport, metrics: Sequence[RoundMetrics]) -> str:
    """Return the page of one run: guarantee, plots, data, cost, model and versions."""
    return render_page(
        "run.html.jinja",
        report=report,
        panels=run_panels(report, metrics),
        non_finite=sum(line.non_finite or 0 for line in metrics),
    )


def run_panels(report: RunReport, metrics: Sequence[RoundMetrics]) -> list[Panel]:
    """Return the panels of one run: losses, ε, attackers, accuracy, cohorts, signal over noise."""
    scored = [(line.round, line.held_out) for line in metrics if line.held_out]
    shares = [(at, 100 * scores.accuracy_top1) for at, scores in scored]
    trained = [(line.round, line.train_loss) for line in metrics if line.train_loss]
    drawn = [(line.round, line.units) for line in metrics]
    clipped = [(line.round, line.clipped) for line in metrics]
    ratios = [(line.round, line.release_over_noise) for line in metrics if line.release_over_noise]
    start = 100 * report.utility.initial.accuracy_top1
    panels = [
        *panels_over_rounds([("this run", report, metrics)]),
        Panel(
            "training",
            "Training loss beside held-out loss",
            "In both, all units have equal weight, as do a unit's examples.",
            [
                curve("cohort's training loss", trained, width=0.7),
                curve(
                    "held-out loss, same mean",
                    [(at, scores.unit_loss) for at, scores in scored],
                    colour(0),
                ),
            ],
            y=Axis("nats per token"),
        ),
        Panel(
            "accuracy",
            "Top-1 accuracy",
            "",
            [curve("top-1 accuracy", shares, colour(2))],
            y=Axis("per cent"),
            levels=[Level(start, f"start {decimal_text(start, 1)} %")] if is_finite(start) else [],
        ),
        Panel(
            "cohort",
            "Cohort size",
            "Units drawn per round, and the number of units that the clip shrank.",
            [
                curve("drawn", drawn, colour(0), marked=False),
                curve("clipped", clipped, colour(1), "--", width=1.0),
            ],
            y=Axis("units", from_zero=True),
        ),
    ]
    if ratios and report.privacy.noise != "none":
        panels.append(
            Panel(
                "signal",
                "Release over noise",
                "Norm of a round's release divided by the norm of its noise, from releases only.",
                [curve("release over noise", ratios, colour(5), width=1.0)],
                levels=[Level(1.0, "only noise")],
            )
        )
    return panels


def panels_over_rounds(runs: Sequence[LabelledRun]) -> list[Panel]:
    """Return panels of held-out loss and, for runs with a guarantee, of ε and attackers' ROCs.

    Args:
        runs: label, report and metrics of each run. Those without a guarantee have no ε to show.
    """
    losses, spent, bounds = [], [], []
    for index, (label, report, metrics) in enumerate(runs):
        name, look = shorten(label, 40), (colour(index), dash(index))
        scored = [(line.round, line.held_out.loss) for line in metrics if line.held_out]
        losses.append(curve(name, scored, *look))
        if report.privacy.epsilon is None:
            continue
        epsilons = [(line.round, line.epsilon) for line in metrics if is_finite(line.epsilon)]
        if epsilons:
            spent.append(curve(name, epsilons, *look))
        if (bound := report.privacy.trade_off) is not None:
            bounds.append(curve(name, bound.roc, *look, marked=False))
    panels = [
        Panel(
            "loss",
            "Held-out loss",
            "",
            losses,
            y=Axis("nats per token"),
            levels=start_levels(report.utility.initial.loss for _, report, _ in runs),
        )
    ]
    if spent:
        y = Axis("ε", from_zero=True)
        panels.append(Panel("epsilon", "Privacy loss ε spent", "", spent, y=y))
    if bounds:
        share = "Upper bound on the share of training users that an attacker can identify."
        panels.append(
            Panel(
                "trade-off",
                "Bound on every attacker",
                share,
                [*bounds, curve("guessing", [(0.0, 0.0), (1.0, 1.0)], width=0.7)],
                x=Axis("false positive rate", limits=(0.0, 1.0)),
                y=Axis("true positive rate", limits=(0.0, 1.01)),
            )
        )
    return panels


def render_page(template: str, **values: object) -> str:
    """Render a template of this package; the page has no scripts and makes no requests."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    """Return the environment, which caches compiled templates."""
    environment = Environment(
        loader=PackageLoader("fedsim.report"),
        autoescape=select_autoescape(disabled_extensions=["md.jinja"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"say": wording, "svg": page_svg}
    return environment
