"""Compare finished runs: one value, its tables, its picture and its page.

A comparison keeps the whole report of each run, so that each rendering can show ε with its δ,
unit, neighbouring relation, sampler and accountant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedsim.report.attack_report import AttackReport
from fedsim.report.attack_table import Attacks, attack_panel, attack_table
from fedsim.report.figures import Axis, Chart, Level, Panel, Point, Series
from fedsim.report.html import LabelledRun, panels_over_rounds, render_page
from fedsim.report.schema import Record, RoundMetrics, RunReport, Scores, is_finite
from fedsim.report.style import colour, shorten
from fedsim.report.tables import UTILITY_NOTE, Table, privacy_record
from fedsim.report.wording import (
    NOT_COVERED,
    NOTHING,
    TIES,
    TOGETHER,
    count_text,
    decimal_text,
    duration_text,
    epsilon_cell,
    percent_text,
    terms_text,
)

# Short heads, to fit a terminal of 80 columns; the notes explain them.
HEADS = ("run", "loss", "ppl", "top-1", "ε", "σ", "grads", "time")

DIFFERENT_BUDGETS = "had different gradient budgets"


class ComparedRun(Record):
    """A run: its report, its metrics after each evaluated round, and an attack on it."""

    label: str
    report: RunReport
    evaluated: tuple[RoundMetrics, ...]
    attack: AttackReport | None = None


class Start(Record):
    """A starting model, which several runs can share."""

    label: str
    scores: Scores


class Comparison(Record):
    """Runs in the given order, their starting models, and sentences to read with the table.

    `captions` gives the terms of each ε, after the labels of its runs. `notes` names differences
    that make runs hard to compare: δ, units, relations, held-out text, budgets, and early ends.
    """

    starts: tuple[Start, ...]
    runs: tuple[ComparedRun, ...]
    captions: tuple[str, ...]
    notes: tuple[str, ...]


def compare(
    reports: Sequence[LabelledRun], attacks: Mapping[str, AttackReport] | None = None
) -> Comparison:
    """Compare runs, in the given order.

    Args:
        reports: (label, report, metrics) of each run; labels are unique.
        attacks: by label, of the runs that were attacked.
    """
    runs = tuple(
        ComparedRun(
            label=label,
            report=report,
            evaluated=tuple(line for line in metrics if line.held_out is not None),
            attack=(attacks or {}).get(label),
        )
        for label, report, metrics in reports
    )
    captions: dict[str, list[str]] = {}
    for run in runs:
        privacy = run.report.privacy
        terms = ". ".join([terms_text(privacy), *privacy.earlier_training])
        captions.setdefault(terms, []).append(run.label)
    early = [
        f"Stopped early: {run.label} after {run.report.cost.rounds} of "
        f"{run.report.cost.planned_rounds} rounds."
        for run in runs
        if run.report.ended_early
    ]
    return Comparison(
        starts=tuple(_starts(runs)),
        runs=runs,
        captions=tuple(f"{', '.join(names)}: {terms}" for terms, names in captions.items()),
        notes=(*comparison_notes([run.report for run in runs]), *early),
    )


def comparison_notes(reports: Sequence[RunReport]) -> list[str]:
    """Return warnings about differences between the runs' ε, losses and costs."""
    promises = {
        (terms.delta, terms.unit, terms.relation, terms.hypothetical, terms.noise)
        for terms in (report.privacy for report in reports)
        if terms.epsilon is not None
    }
    held_out = {
        (report.data.source, report.data.held_out_examples, report.utility.final.tokens)
        for report in reports
    }
    notes = []
    if len(promises) > 1:
        notes.append(
            "The runs differ in δ, unit, neighbouring relation or kind of ε; their ε are not "
            "directly comparable."
        )
    if len(held_out) > 1:
        notes.append("The runs were scored on different held-out text.")
    # Prefer expected gradients: sampling makes the actual numbers differ by chance.
    budgets = [report.cost.expected_gradients or report.cost.gradients for report in reports]
    if budgets and max(budgets) > 1.01 * min(budgets):
        notes.append(f"The runs {DIFFERENT_BUDGETS}.")
    return notes


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return the runs' table and, where runs were attacked, that of the attacks."""
    attacks = attack_table(attacked(comparison))
    return [comparison_table(comparison), *([attacks] if attacks else [])]


def comparison_table(comparison: Comparison) -> Table:
    """Return the table, with the terms of each ε as notes; its CSV has every field."""
    starts, runs = comparison.starts, comparison.runs
    promised = any(run.report.privacy.epsilon is not None for run in runs)
    together = [TOGETHER] if promised and len(runs) > 1 else []
    if len(runs) > 1 and all(run.report.privacy.noise != "secure" for run in runs):
        together.append(TIES)
    return Table(
        HEADS,
        [
            *([start.label, *_scores(start.scores), *4 * [NOTHING]] for start in starts),
            *(_cells(run.label, run.report) for run in runs),
        ],
        notes=[*comparison.captions, UTILITY_NOTE, *together, *comparison.notes],
        dim=range(len(starts)),
        records=[_record(run.label, run.report) for run in runs],
    )


def _cells(label: str, report: RunReport) -> list[str]:
    scores = _scores(report.utility.final)
    return [
        label if report.name in label else f"{label} ({report.name})",
        *(["diverged", NOTHING, NOTHING] if report.diverged else scores),
        epsilon_cell(report.privacy),
        decimal_text(report.privacy.noise_multiplier),
        count_text(report.cost.gradients),
        duration_text(report.cost.seconds),
    ]


def _scores(scores: Scores) -> list[str]:
    loss, perplexity = decimal_text(scores.loss), decimal_text(scores.perplexity, 2)
    return [loss, perplexity, percent_text(scores.accuracy_top1)]


def _record(label: str, report: RunReport) -> dict[str, object]:
    utility = report.utility
    return {
        "label": label,
        "run": report.title,
        "strategy": report.name,
        "start_loss": utility.initial.loss,
        **utility.final.model_dump(include={"loss", "perplexity", "accuracy_top1"}),
        **privacy_record(report.privacy),
        "diverged": report.diverged is not None,
        **report.cost.model_dump(include={"gradients", "seconds", "rounds", "planned_rounds"}),
    }


def _starts(runs: Sequence[ComparedRun]) -> list[Start]:
    """Return each starting model once, in order of appearance, with the labels of its runs.

    Losses that agree to six digits count as one start, because machines differ in later digits.
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
    """Return the page of several runs: guarantees, table and plots."""
    return render_page(
        "comparison.html.jinja",
        comparison=comparison,
        table=comparison_table(comparison),
        attacks=attack_table(attacked(comparison)),
        panels=_panels(comparison),
    )


def comparison_chart(comparison: Comparison) -> Chart:
    """Return the picture: loss over rounds, final perplexity and, of attacked runs, AUROC."""
    panels = [_panels(comparison)[0], _perplexity_panel(comparison)]
    if attacks := attacked(comparison):
        panels.append(attack_panel(attacks))
    return Chart([panels], [*comparison.captions, f"All scores: {NOT_COVERED}."])


def attacked(comparison: Comparison) -> Attacks:
    """Return label and attack of the runs that were attacked."""
    return [(run.label, run.attack) for run in comparison.runs if run.attack is not None]


def _panels(comparison: Comparison) -> list[Panel]:
    runs = [(run.label, run.report, run.evaluated) for run in comparison.runs]
    panels = panels_over_rounds(runs)
    attacks = attacked(comparison)
    return [*panels, *([attack_panel(attacks)] if attacks else [])]


def _perplexity_panel(comparison: Comparison) -> Panel:
    """Return a panel with one row per run: its perplexity as a bar from zero, and its ε."""
    runs = comparison.runs
    starts = [start.scores.perplexity for start in comparison.starts]
    starts = [start for start in starts if is_finite(start)]
    finals = [run.report.utility.final.perplexity for run in runs]
    # Cut the bar of a diverged run, which would flatten the others; its label has the value.
    limit = 1.25 * max(starts, default=max(filter(is_finite, finals), default=1.0))
    ends = [min(value, limit) if is_finite(value) else None for value in finals]
    return Panel(
        "perplexity",
        "Final perplexity",
        "",
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
