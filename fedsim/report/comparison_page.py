"""A comparison drawn: the picture and the page of several runs."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.report.charts import (
    UNCOVERED,
    Axis,
    Chart,
    Level,
    Panel,
    Point,
    Series,
    curve,
    epsilon_panel,
    start_levels,
    trade_off_panel,
)
from fedsim.report.comparison import (
    ComparedRun,
    Comparison,
    comparison_table,
    distinct_starts,
    reading_notes,
)
from fedsim.report.html import render_page
from fedsim.report.plots import plots
from fedsim.report.schema import is_finite
from fedsim.report.style import colour, dash, shorten
from fedsim.report.wording import NOT_COVERED, decimal_text, epsilon_text, terms_text


def render_comparison(comparison: Comparison) -> str:
    """Return the page of several runs: each one's promise, the table, the plots."""
    panels = [loss_panel(comparison.runs)]
    epsilons = epsilon_series(comparison.runs)
    if epsilons:
        terms = ". ".join(f"{run.label}: {terms_text(run.privacy)}" for run in comparison.runs)
        panels.append(epsilon_panel(f"{terms}.", epsilons, legend=True))
        bounds = [
            (shorten(run.label, 40), run.privacy.trade_off, colour(index), dash(index))
            for index, run in enumerate(comparison.runs)
            if run.privacy.trade_off is not None
        ]
        if bounds:
            panels.append(trade_off_panel(f"{terms}.", bounds))
    return render_page(
        "comparison.html.jinja",
        comparison=comparison,
        table=comparison_table(comparison),
        reading_notes=reading_notes(comparison),
        plots=plots(panels),
    )


def comparison_chart(comparison: Comparison) -> Chart:
    """Return the picture: held-out loss over rounds, and final perplexity, of every run.

    A point that is infinite or NaN is left out of its curve; a perplexity that is not finite is
    written where its dot would be.
    """
    runs = comparison.runs
    grouped: dict[str, list[str]] = {}
    for run in runs:
        grouped.setdefault(terms_text(run.privacy), []).append(shorten(run.label, 30))
    terms = [f"{', '.join(labels)}: {text}." for text, labels in grouped.items()]
    notes = [*terms, f"Loss and perplexity: {NOT_COVERED}."]
    return Chart([[loss_panel(runs), perplexity_panel(runs)]], notes, least_height=3.5)


def loss_panel(runs: Sequence[ComparedRun]) -> Panel:
    """Return held-out loss over rounds, a curve a run."""
    return Panel(
        "loss",
        "Held-out loss",
        UNCOVERED,
        [
            curve(
                shorten(run.label, 40),
                [(point.round, point.loss) for point in run.curve],
                colour(index),
                dash=dash(index),
            )
            for index, run in enumerate(runs)
        ],
        y=Axis("nats a token"),
        levels=start_levels(start.loss for start in distinct_starts(runs)),
        legend=True,
    )


def epsilon_series(runs: Sequence[ComparedRun]) -> list[Series]:
    """Return ε over rounds of the runs that spent one; without a guarantee it means nothing."""
    found = []
    for index, run in enumerate(runs):
        spent = [(point.round, point.epsilon) for point in run.curve if is_finite(point.epsilon)]
        if spent and run.privacy.epsilon is not None:
            found.append(curve(shorten(run.label, 40), spent, colour(index), dash=dash(index)))
    return found


def perplexity_panel(runs: Sequence[ComparedRun]) -> Panel:
    """Return a row for each run: its perplexity from zero, and its ε."""
    starts = [s.perplexity for s in distinct_starts(runs) if is_finite(s.perplexity)]
    finals = [run.final.perplexity for run in runs]
    # A run that diverged must not flatten the others: its row is cut, its value is written.
    limit = 1.25 * max(starts, default=max(filter(is_finite, finals), default=1.0))
    ends = [min(value, limit) if is_finite(value) else None for value in finals]
    return Panel(
        "perplexity",
        "Final perplexity",
        UNCOVERED,
        [
            Series(run.label, [Point(row, end, 0.0, end)], colour(row), marks=True)
            for row, (run, end) in enumerate(zip(runs, ends, strict=True))
            if end is not None
        ],
        x=Axis(limits=(0.0, limit)),
        levels=[Level(start, f"start {decimal_text(start, 1)}") for start in starts],
        rows=[_row_text(run) for run in runs],
    )


def _row_text(run: ComparedRun) -> str:
    epsilon = run.privacy.epsilon
    promise = "no guarantee" if epsilon is None else f"ε = {epsilon_text(epsilon)}"
    if run.privacy.hypothetical:
        promise = f"hypothetical {promise}"
    shown = "diverged" if run.diverged else decimal_text(run.final.perplexity, 1)
    return f"{shorten(run.label, 24)} · {shown} · {promise}"
