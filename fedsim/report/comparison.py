"""Several finished runs side by side: one value, its tables, its picture and its page.

A comparison keeps the whole report of each run, so that no rendering can show an ε without its
δ, unit, neighbouring relation, sampler and accountant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedsim.errors import ConfigError
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
from fedsim.report.schema import Record, RoundMetrics, RunReport, Scores, is_finite
from fedsim.report.style import colour, dash, shorten
from fedsim.report.tables import UTILITY_NOTE, Table, privacy_record
from fedsim.report.wording import (
    NOT_COVERED,
    NOTHING,
    TIES,
    TOGETHER,
    better_than_non_private,
    count_text,
    decimal_text,
    delta_text,
    duration_text,
    epsilon_cell,
    percent_text,
    terms_text,
)

HEADS = (
    *("run", "strategy", "held-out loss", "perplexity", "top-1 accuracy", "ε", "δ"),
    *("σ (noise multiplier)", "unit", "gradients", "time"),
)
# A terminal has 80 columns: heads as short as the numbers under them.
TERMINAL_HEADS = ("run", "loss", "ppl", "top-1", "ε", "σ", "grads", "time")
_IN_THE_NOTES = (6, 8)  # δ and the unit, which stand there with the other terms of ε

DIFFERENT_TEXT = "were scored on different held-out text"
DIFFERENT_BUDGETS = "had different gradient budgets"

LabelledRun = tuple[str, RunReport, Sequence[RoundMetrics]]


class ComparedRun(Record):
    """A run: its report, and its metrics after each evaluated round."""

    label: str
    report: RunReport
    evaluated: tuple[RoundMetrics, ...]


class Start(Record):
    """A starting point, which several runs can share."""

    label: str
    scores: Scores


class Comparison(Record):
    """Runs in the order given, their starting points, and sentences for reading the table.

    `captions` has for each run the terms of its ε; `notes` names differences that make runs hard
    to compare: δ, units, relations, held-out text, budgets, and runs that ended early.
    """

    starts: tuple[Start, ...]
    runs: tuple[ComparedRun, ...]
    captions: tuple[str, ...]
    notes: tuple[str, ...]


def compare(reports: Sequence[LabelledRun]) -> Comparison:
    """Lay runs side by side, in the order given.

    Args:
        reports: (label, report, metrics) of each run; labels differ from each other.

    Raises:
        ConfigError: no runs, or two with the same label.
    """
    labels = [label for label, _, _ in reports]
    if not labels or len(set(labels)) < len(labels):
        raise ConfigError(f"runs = {labels}: give at least one run, and none twice")
    runs = tuple(
        ComparedRun(
            label=label,
            report=report,
            evaluated=tuple(line for line in metrics if line.held_out is not None),
        )
        for label, report, metrics in reports
    )
    early = [
        f"Stopped early: {run.label} after {run.report.cost.rounds} of "
        f"{run.report.cost.planned_rounds} rounds."
        for run in runs
        if run.report.ended_early
    ]
    plain = [run.report.utility.final.loss for run in runs if run.report.name == "non-private"]
    better = [
        run.label
        for run in runs
        if run.report.name != "non-private"
        and any(run.report.utility.final.loss < loss for loss in plain)
    ]
    return Comparison(
        starts=tuple(_starts(runs)),
        runs=runs,
        captions=tuple(
            ". ".join([f"{label}: {terms_text(run.privacy)}", *run.privacy.earlier_training])
            for label, run, _ in reports
        ),
        notes=(
            *comparison_notes([run.report for run in runs]),
            *early,
            *better_than_non_private(better),
        ),
    )


def comparison_notes(reports: Sequence[RunReport]) -> list[str]:
    """Return warnings to read before the ε, losses and costs of these runs are compared."""
    private = [report.privacy for report in reports if report.privacy.epsilon is not None]
    apart = "their ε are not directly comparable"
    checks: list[tuple[str, set[object]]] = [
        (f"have different δ; {apart}", {terms.delta for terms in private}),
        (f"protect different units; {apart}", {terms.unit for terms in private}),
        (f"use different neighbouring relations; {apart}", {terms.relation for terms in private}),
        (f"mix ε with hypothetical ones; {apart}", {terms.hypothetical for terms in private}),
        (f"have secret noise and seeded noise; {apart}", {terms.noise for terms in private}),
        (DIFFERENT_TEXT, {held_out_text(report) for report in reports}),
    ]
    notes = [f"The runs {text}." for text, values in checks if len(values) > 1]
    # Sampling makes equal budgets differ by chance: the expectation decides where it is known.
    budgets = [report.cost.expected_gradients or report.cost.gradients for report in reports]
    if budgets and max(budgets) > 1.01 * min(budgets):
        notes.append(f"The runs {DIFFERENT_BUDGETS}.")
    return notes


def held_out_text(report: RunReport) -> tuple[str, int, int]:
    """Return a key that differs between runs which were scored on different text."""
    return report.data.source, report.data.held_out_examples, report.utility.final.tokens


def comparison_table(comparison: Comparison) -> Table:
    """Return the table of the files, with the terms of each ε; its CSV has every field."""
    starts, runs = comparison.starts, comparison.runs
    promised = any(run.report.privacy.epsilon is not None for run in runs)
    together = [TOGETHER] if promised and len(runs) > 1 else []
    if len(runs) > 1 and all(run.report.privacy.noise != "secure" for run in runs):
        together.append(TIES)
    return Table(
        HEADS,
        [
            *([start.label, NOTHING, *_scores(start.scores), *6 * [NOTHING]] for start in starts),
            *(_cells(run.label, run.report) for run in runs),
        ],
        notes=[*comparison.captions, UTILITY_NOTE, *together, *comparison.notes],
        left=(0, 1, 8),
        dim=range(len(starts)),
        records=[
            *(_record("start", start.label, start.scores) for start in starts),
            *(_record("run", run.label, run.report.utility.final, run.report) for run in runs),
        ],
    )


def terminal_table(comparison: Comparison) -> Table:
    """Return the table with shorter heads, and the strategy behind a name that lacks it."""
    table = comparison_table(comparison)
    rows = []
    for row in table.rows:
        label, strategy, *numbers = (
            cell for place, cell in enumerate(row) if place not in _IN_THE_NOTES
        )
        named = strategy == NOTHING or strategy in label
        rows.append([label if named else f"{label} ({strategy})", *numbers])
    return replace(table, heads=TERMINAL_HEADS, rows=rows, left=(0,))


def _cells(label: str, report: RunReport) -> list[str]:
    privacy, cost = report.privacy, report.cost
    promised = privacy.epsilon is not None  # a δ without an ε would suggest a guarantee
    return [
        label,
        report.name,
        *(["diverged", NOTHING, NOTHING] if report.diverged else _scores(report.utility.final)),
        epsilon_cell(privacy),
        delta_text(privacy.delta) if promised else NOTHING,
        decimal_text(privacy.noise_multiplier),
        privacy.unit if promised else NOTHING,
        count_text(cost.gradients),
        duration_text(cost.seconds),
    ]


def _scores(scores: Scores) -> list[str]:
    loss, perplexity = decimal_text(scores.loss), decimal_text(scores.perplexity, 2)
    return [loss, perplexity, percent_text(scores.accuracy_top1)]


def _record(
    kind: str, label: str, scores: Scores, report: RunReport | None = None
) -> dict[str, object]:
    """Return a line of the CSV; a starting point has scores alone."""
    cost = None if report is None else report.cost
    names = ("gradients", "seconds", "rounds", "planned_rounds")
    return {
        "kind": kind,
        "label": label,
        "run": None if report is None else report.title,
        "strategy": None if report is None else report.name,
        **scores.model_dump(include={"loss", "perplexity", "accuracy_top1"}),
        **privacy_record(None if report is None else report.privacy),
        "diverged": None if report is None else report.diverged is not None,
        **{name: getattr(cost, name, None) for name in names},
    }


def _starts(runs: Sequence[ComparedRun]) -> list[Start]:
    """Return each starting point once, in order of appearance, with the labels of its runs.

    Losses that agree to six digits are of one start: another machine can change the last ones.
    """
    groups: dict[object, tuple[Scores, list[str]]] = {}
    for run in runs:
        scores = run.report.utility.initial
        _, labels = groups.setdefault((f"{scores.loss:.6g}", scores.tokens), (scores, []))
        labels.append(run.label)
    several = len(groups) > 1
    return [
        Start(label="starting point" + f" of {', '.join(labels)}" * several, scores=scores)
        for scores, labels in groups.values()
    ]


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
    return " · ".join([shorten(run.label, 24), shown, *([] if "ε = " in run.label else [promise])])
