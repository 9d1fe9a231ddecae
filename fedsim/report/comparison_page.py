"""A comparison drawn: the picture and the page of several runs."""

from __future__ import annotations

from fedsim.report.comparison import ComparedRun, Comparison, comparison_table, reading_notes
from fedsim.report.figures import (
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
from fedsim.report.html import render_page
from fedsim.report.schema import is_finite
from fedsim.report.style import colour, dash, shorten
from fedsim.report.wording import NOT_COVERED, decimal_text, epsilon_cell, terms_text


def render_comparison(comparison: Comparison) -> str:
    """Return the page of several runs: each one's promise, the table, the plots."""
    runs = comparison.runs
    terms = ". ".join(f"{run.label}: {terms_text(run.report.privacy)}" for run in runs)
    panels, spent, bounds = [_loss_panel(comparison)], [], []
    for index, run in enumerate(runs):
        label, privacy = shorten(run.label, 40), run.report.privacy
        if privacy.epsilon is None:  # an ε on the way to no guarantee means nothing
            continue
        points = [(line.round, line.epsilon) for line in run.evaluated if is_finite(line.epsilon)]
        spent.append(curve(label, points, colour(index), dash(index)))
        if privacy.trade_off is not None:
            bounds.append((label, privacy.trade_off, colour(index), dash(index)))
    if any(series.points for series in spent):
        panels.append(epsilon_panel(f"{terms}.", spent))
    if bounds:
        panels.append(trade_off_panel(f"{terms}.", bounds))
    return render_page(
        "comparison.html.jinja",
        comparison=comparison,
        table=comparison_table(comparison),
        reading_notes=reading_notes(comparison),
        panels=panels,
    )


def comparison_chart(comparison: Comparison) -> Chart:
    """Return the picture: held-out loss over rounds, and final perplexity, of every run."""
    grouped: dict[str, list[str]] = {}
    for run in comparison.runs:
        grouped.setdefault(terms_text(run.report.privacy), []).append(shorten(run.label, 30))
    terms = [f"{', '.join(labels)}: {text}." for text, labels in grouped.items()]
    panels = [_loss_panel(comparison), _perplexity_panel(comparison)]
    return Chart([panels], [*terms, f"Loss and perplexity: {NOT_COVERED}."])


def _loss_panel(comparison: Comparison) -> Panel:
    series = []
    for index, run in enumerate(comparison.runs):
        points = [(line.round, line.held_out.loss) for line in run.evaluated if line.held_out]
        series.append(curve(shorten(run.label, 40), points, colour(index), dash(index)))
    return Panel(
        "loss",
        "Held-out loss",
        UNCOVERED,
        series,
        y=Axis("nats a token"),
        levels=start_levels(start.scores.loss for start in comparison.starts),
    )


def _perplexity_panel(comparison: Comparison) -> Panel:
    """Return a row for each run: its perplexity from zero, and its ε."""
    runs = comparison.runs
    starts = [start.scores.perplexity for start in comparison.starts]
    starts = [start for start in starts if is_finite(start)]
    finals = [run.report.utility.final.perplexity for run in runs]
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
    final, privacy = run.report.utility.final, run.report.privacy
    promise = "no guarantee" if privacy.epsilon is None else f"ε = {epsilon_cell(privacy)}"
    shown = "diverged" if run.report.diverged else decimal_text(final.perplexity, 1)
    return f"{shorten(run.label, 24)} · {shown} · {promise}"
