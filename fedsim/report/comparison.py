"""Several finished runs side by side: one value, and its tables.

A comparison keeps the whole report of each run, so that no rendering can show an ε without its
δ, unit, neighbouring relation, sampler and accountant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fedsim.errors import ConfigError
from fedsim.report.schema import Record, RoundMetrics, RunReport, Scores
from fedsim.report.tables import UTILITY_NOTE, Table, privacy_record
from fedsim.report.wording import (
    NOTHING,
    TOGETHER,
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
    return Comparison(
        starts=tuple(_starts(runs)),
        runs=runs,
        captions=tuple(
            ". ".join([f"{label}: {terms_text(run.privacy)}", *run.privacy.earlier_training])
            for label, run, _ in reports
        ),
        notes=(*comparison_notes([run.report for run in runs]), *early),
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


def reading_notes(comparison: Comparison) -> list[str]:
    """Return sentences that hold for every such table."""
    promised = any(run.report.privacy.epsilon is not None for run in comparison.runs)
    return [UTILITY_NOTE, *([TOGETHER] if promised and len(comparison.runs) > 1 else [])]


def comparison_table(comparison: Comparison) -> Table:
    """Return the table of the files, with the terms of each ε; its CSV has every field."""
    starts, runs = comparison.starts, comparison.runs
    return Table(
        HEADS,
        [
            *([start.label, NOTHING, *_scores(start.scores), *6 * [NOTHING]] for start in starts),
            *(_cells(run.label, run.report) for run in runs),
        ],
        notes=[*comparison.captions, *reading_notes(comparison), *comparison.notes],
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
    return {
        "kind": kind,
        "label": label,
        "strategy": None if report is None else report.name,
        **scores.model_dump(include={"loss", "perplexity", "accuracy_top1"}),
        **privacy_record(None if report is None else report.privacy),
        "diverged": None if report is None else report.diverged is not None,
        **{
            name: getattr(cost, name, None)
            for name in ("gradients", "seconds", "rounds", "planned_rounds")
        },
    }


def _starts(runs: Sequence[ComparedRun]) -> list[Start]:
    """Return each starting point once, in order of appearance, with the labels of its runs."""
    groups: list[tuple[Scores, list[str]]] = []
    for run in runs:
        scores = run.report.utility.initial
        labels = next((labels for known, labels in groups if _same(scores, known)), None)
        if labels is None:
            groups.append((scores, labels := []))
        labels.append(run.label)
    of = [f" of {', '.join(labels)}" if len(groups) > 1 else "" for _, labels in groups]
    return [
        Start(label=f"starting point{text}", scores=scores)
        for text, (scores, _) in zip(of, groups, strict=True)
    ]


def _same(left: Scores, right: Scores) -> bool:
    """Equal up to a relative 1e-6, as the same network can differ on another machine."""
    equal = math.isclose(left.loss, right.loss, rel_tol=1e-6) or (
        math.isnan(left.loss) and math.isnan(right.loss)
    )
    return equal and left.tokens == right.tokens
