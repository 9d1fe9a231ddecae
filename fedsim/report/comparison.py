"""Several finished runs side by side: one value, and its tables.

A comparison keeps what each run promised next to what it achieved, so that no rendering can
show an ε without its δ, unit, neighbouring relation, sampler and accountant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from fedsim.errors import ConfigError
from fedsim.report.schema import (
    Count,
    NotNegative,
    Number,
    Privacy,
    Record,
    RoundMetrics,
    RunReport,
    Scores,
)
from fedsim.report.tables import UTILITY_NOTE, Table
from fedsim.report.wording import (
    NOTHING,
    TOGETHER,
    count_text,
    decimal_text,
    delta_text,
    duration_text,
    epsilon_text,
    percent_text,
    terms_text,
)

HEADS = (
    "run",
    "strategy",
    "held-out loss",
    "perplexity",
    "top-1 accuracy",
    "ε",
    "δ",
    "σ (noise multiplier)",
    "unit",
    "gradients",
    "time",
)
# A terminal has 80 columns: heads as short as the numbers under them.
TERMINAL_HEADS = ("run", "loss", "ppl", "top-1", "ε", "σ", "grads", "time")
_IN_THE_NOTES = (6, 8)  # δ and the unit, which stand there with the rest of ε's terms

DIFFERENT_TEXT = "were scored on different held-out text"
DIFFERENT_BUDGETS = "had different gradient budgets"
SCORES = {"loss", "perplexity", "accuracy_top1"}

LabelledRun = tuple[str, RunReport, Sequence[RoundMetrics]]


class Row(Record):
    """One line of the table. A starting point has utility only; its other fields are None."""

    kind: Literal["start", "run"]
    label: str
    strategy: str | None = None
    loss: Number
    perplexity: Number
    accuracy_top1: Number
    epsilon: NotNegative | None = None
    delta: NotNegative | None = None
    noise_multiplier: NotNegative | None = None
    unit: str | None = None
    relation: str | None = None
    sampler: str | None = None
    accountant: str | None = None
    noise: Literal["seeded", "secure", "none"] | None = None
    hypothetical: bool = False
    diverged: bool = False
    gradients: Count | None = None
    seconds: NotNegative | None = None
    rounds: Count | None = None
    planned_rounds: Count | None = None


class CurvePoint(Record):
    """Held-out loss, and ε spent so far, after an evaluated round."""

    round: Count
    loss: Number
    epsilon: Number | None


class ComparedRun(Record):
    """A run: its promise, its losses over the rounds, and its scores before and after."""

    label: str
    strategy: str
    title: str
    privacy: Privacy
    initial: Scores
    final: Scores
    diverged: bool = False
    curve: tuple[CurvePoint, ...]


class Comparison(Record):
    """Table rows (starting points first), the runs behind them, and how to read the table.

    `captions` says for each run what its ε is an ε of; `notes` says what makes runs hard to
    compare: different δ, units, relations or held-out text, and runs that stopped early.
    """

    rows: tuple[Row, ...]
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
    if not labels:
        raise ConfigError("runs = []: give at least one run to compare")
    if len(set(labels)) < len(labels):
        raise ConfigError(f"labels = {labels}: give each run a label of its own")
    runs = tuple(_compared(label, run, metrics) for label, run, metrics in reports)
    return Comparison(
        rows=(*_starting_rows(runs), *(_run_row(label, run) for label, run, _ in reports)),
        runs=runs,
        captions=tuple(
            ". ".join(
                filter(
                    None,
                    [f"{label}: {terms_text(run.privacy)}", " ".join(run.privacy.earlier_training)],
                )
            )
            for label, run, _ in reports
        ),
        notes=(*comparison_notes([run for _, run, _ in reports]), *_ended_early(reports)),
    )


def cells(row: Row) -> list[str]:
    """Return the row as displayed, a cell for each of `HEADS`.

    A run without a guarantee has "none" for ε; a starting point, which released nothing, a dash.
    """
    epsilon = "none" if row.kind == "run" and row.epsilon is None else epsilon_text(row.epsilon)
    if row.hypothetical:
        epsilon += " (hypothetical)"
    promised = row.epsilon is not None  # a δ without an ε would suggest a guarantee
    return [
        row.label,
        row.strategy or NOTHING,
        "diverged" if row.diverged else decimal_text(row.loss),
        NOTHING if row.diverged else decimal_text(row.perplexity, 2),
        NOTHING if row.diverged else percent_text(row.accuracy_top1),
        epsilon,
        delta_text(row.delta) if promised else NOTHING,
        decimal_text(row.noise_multiplier),
        row.unit if row.unit is not None and promised else NOTHING,
        count_text(row.gradients),
        NOTHING if row.seconds is None else duration_text(row.seconds),
    ]


def reading_notes(comparison: Comparison) -> list[str]:
    """Return what is to be known of every such table."""
    promised = any(run.privacy.epsilon is not None for run in comparison.runs)
    several = promised and len(comparison.runs) > 1
    return [UTILITY_NOTE, TOGETHER] if several else [UTILITY_NOTE]


def comparison_table(comparison: Comparison) -> Table:
    """Return the table of the files, with the terms of each ε; its CSV has every field."""
    return Table(
        HEADS,
        [cells(row) for row in comparison.rows],
        notes=[*comparison.captions, *reading_notes(comparison), *comparison.notes],
        left=(0, 1, 8),
        dim=[number for number, row in enumerate(comparison.rows) if row.kind == "start"],
        records=[row.model_dump() for row in comparison.rows],
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


def held_out_text(report: RunReport) -> tuple[str, int, int]:
    """Return by what the held-out texts of two runs are told apart."""
    return report.data.source, report.data.held_out_examples, report.utility.final.tokens


def unique_labels(names: Sequence[str]) -> list[str]:
    """Return the names with " (2)", " (3)", … after those that came before.

    A generated name that is itself taken is skipped: no two results are equal.
    """
    taken: set[str] = set()
    labels: list[str] = []
    for name in names:
        label, number = name, 1
        while label in taken or (number > 1 and label in names):
            number += 1
            label = f"{name} ({number})"
        taken.add(label)
        labels.append(label)
    return labels


def distinct_starts(runs: Sequence[ComparedRun]) -> list[Scores]:
    """Return the starting points without repetition, in order of appearance."""
    return [start for start, _ in _starts(runs)]


def _starts(runs: Sequence[ComparedRun]) -> list[tuple[Scores, list[str]]]:
    """Return each starting point with the labels of its runs."""
    groups: list[tuple[Scores, list[str]]] = []
    for run in runs:
        labels = next((labels for known, labels in groups if _same_start(run.initial, known)), None)
        if labels is None:
            groups.append((run.initial, [run.label]))
        else:
            labels.append(run.label)
    return groups


def _same_start(left: Scores, right: Scores) -> bool:
    """Equal up to what the same network gives on another machine: a relative 1e-6."""
    return left.tokens == right.tokens and all(
        math.isclose(a, b, rel_tol=1e-6) or (math.isnan(a) and math.isnan(b))
        for a, b in ((left.loss, right.loss), (left.accuracy_top1, right.accuracy_top1))
    )


def _starting_rows(runs: Sequence[ComparedRun]) -> list[Row]:
    groups = _starts(runs)
    texts = [f" of {', '.join(labels)}" if len(groups) > 1 else "" for _, labels in groups]
    return [
        Row(kind="start", label=f"starting point{text}", **start.model_dump(include=SCORES))
        for text, (start, _) in zip(texts, groups, strict=True)
    ]


def _run_row(label: str, report: RunReport) -> Row:
    return Row(
        kind="run",
        label=label,
        strategy=report.name,
        diverged=report.diverged is not None,
        **report.cost.model_dump(include={"gradients", "seconds", "rounds", "planned_rounds"}),
        **report.utility.final.model_dump(include=SCORES),
        **report.privacy.model_dump(include=set(Row.model_fields) - {"rounds"}),
    )


def _compared(label: str, report: RunReport, metrics: Sequence[RoundMetrics]) -> ComparedRun:
    return ComparedRun(
        label=label,
        strategy=report.name,
        title=report.title,
        privacy=report.privacy,
        initial=report.utility.initial,
        final=report.utility.final,
        diverged=report.diverged is not None,
        curve=tuple(
            CurvePoint(round=line.round, loss=line.held_out.loss, epsilon=line.epsilon)
            for line in metrics
            if line.held_out is not None
        ),
    )


def _ended_early(reports: Sequence[LabelledRun]) -> list[str]:
    return [
        f"Stopped early: {label} after {run.cost.rounds} of {run.cost.planned_rounds} rounds."
        for label, run, _ in reports
        if run.ended_early
    ]


def _first_alike(report: RunReport, reports: Sequence[RunReport]) -> int:
    """Return the place of the first run from the same model whose start scored the same.

    Texts of as many tokens are told apart by what one and the same model makes of them; of runs
    from another model nothing is known by it.
    """
    same = [run for run in reports if run.model.name == report.model.name]
    same = [run for run in same if run.model.origin == report.model.origin]
    start = report.utility.initial
    return next(i for i, run in enumerate(same) if _same_start(run.utility.initial, start))


def comparison_notes(reports: Sequence[RunReport]) -> list[str]:
    """Return what is to be known before the ε, losses and costs of these runs are compared."""
    private = [report.privacy for report in reports if report.privacy.epsilon is not None]
    texts = [(*held_out_text(report), _first_alike(report, reports)) for report in reports]
    apart = "their ε are not directly comparable"
    checks: list[tuple[str, list[object]]] = [
        (f"have different δ; {apart}", [terms.delta for terms in private]),
        (f"protect different units; {apart}", [terms.unit for terms in private]),
        (f"use different neighbouring relations; {apart}", [terms.relation for terms in private]),
        (f"mix ε with hypothetical ones; {apart}", [terms.hypothetical for terms in private]),
        (f"have secret noise and seeded noise; {apart}", [terms.noise for terms in private]),
        (DIFFERENT_TEXT, [*texts]),
    ]
    notes = [f"The runs {text}." for text, values in checks if len(set(values)) > 1]
    # Sampling makes equal budgets differ by chance: the expectation decides where it is known.
    budgets = [run.cost.expected_gradients or run.cost.gradients for run in reports]
    if budgets and max(budgets) > 1.01 * min(budgets):  # the coins alone make as much
        notes.append(f"The runs {DIFFERENT_BUDGETS}.")
    return notes
