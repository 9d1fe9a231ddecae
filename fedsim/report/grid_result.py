"""The result of a comparison: one line per run, or per setting with an interval over its seeds.

Seeds that diverged or failed are counted and shown beside the mean over the other seeds. A line of
a single run keeps its whole report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from fedsim.report.attack_report import AttackReport
from fedsim.report.attack_table import Attacks
from fedsim.report.intervals import Difference, Interval, interval
from fedsim.report.labels import common_part, label_parts
from fedsim.report.schema import (
    Count,
    NotNegative,
    Number,
    Privacy,
    Record,
    RoundMetrics,
    RunReport,
    is_finite,
)
from fedsim.report.tables import UTILITY_NOTE, Table, privacy_record
from fedsim.report.wording import (
    NOTHING,
    TIES,
    count_text,
    decimal_text,
    duration_text,
    epsilon_cell,
    terms_text,
)


class ComparedRun(Record):
    """A run: its report, its metrics after each evaluated round, and an attack on it."""

    report: RunReport
    evaluated: tuple[RoundMetrics, ...] = ()
    attack: AttackReport | None = None


class CellResult(Record):
    """A line of a comparison: one run, or one setting over its seeds.

    Attributes:
        name: name of the run or setting; runs of seeds are called `<name>,seed=<s>`.
        source: the config file's stem, or the title of a finished run.
        strategy: name of the strategy.
        settings: the varied settings, label to value as typed.
        chosen: settings that tuning chose, label to value.
        privacy: privacy block with the largest ε of all seeds, which holds for each seed; None
            before a run has ended.
        budget: expected gradients per round.
        rounds: number of rounds of a finished run.
        seeds: seeds of the runs with a report, in their order.
        losses: held-out loss of each of these seeds; NaN if it diverged.
        loss: interval over the finite losses of runs with all rounds; None without such a run.
        accuracy: top-1 accuracy, likewise.
        start: held-out loss of the starting model, mean over the seeds' splits.
        run: the run, if the line has only one and not a run per seed.
        averaged: seeds included in `loss`.
        num_halted: number of runs that their strategy ended; `stopped` has the reasons.
        num_diverged: number of runs without a finite final loss.
        stopped: one sentence per run that ended early; such runs are not in the means.
        failures: one sentence per run without a report.
    """

    name: str
    source: str
    strategy: str
    settings: dict[str, str]
    chosen: dict[str, str]
    privacy: Privacy | None = None
    budget: NotNegative | None = None
    rounds: Count | None = None
    seeds: tuple[int, ...] = ()
    losses: tuple[Number, ...] = ()
    loss: Interval | None = None
    accuracy: Interval | None = None
    start: Number | None = None
    averaged: tuple[int, ...] = ()
    num_halted: Count = 0
    num_diverged: Count = 0
    stopped: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    seconds: NotNegative = 0.0
    run: ComparedRun | None = None

    @property
    def num_averaged(self) -> int:
        """Number of seeds in `loss`."""
        return len(self.averaged)

    @property
    def counted_losses(self) -> dict[int, float]:
        """Held-out loss of each seed in `loss`, by seed."""
        losses = zip(self.seeds, self.losses, strict=True)
        return {seed: loss for seed, loss in losses if seed in self.averaged}

    @property
    def epsilon(self) -> float | None:
        """ε of the line; None without a guarantee."""
        return None if self.privacy is None else self.privacy.epsilon

    @property
    def noise_multiplier(self) -> float | None:
        """The noise multiplier; None without noise."""
        return None if self.privacy is None else self.privacy.noise_multiplier

    @property
    def terms(self) -> str:
        """The terms of ε, and of earlier training; "" before a run has ended."""
        if self.privacy is None:
            return ""
        return ". ".join([terms_text(self.privacy), *self.privacy.earlier_training])


class Tuning(Record):
    """The settings that tuning tried, and their cost.

    Attributes:
        keys: the varied keys.
        runs: number of runs.
        failures: number of runs without a report; `gradients` and `seconds` leave them out.
        gradients: number of gradients computed.
        seconds: time of the runs.
        tried: line name to setting to its loss; NaN if the run diverged or failed.
        statement: sentence on the text that chose the settings, which no ε covers.
    """

    keys: tuple[str, ...]
    runs: Count
    failures: Count = 0
    gradients: Count
    seconds: NotNegative
    tried: dict[str, dict[str, Number]]
    statement: str


class GridResult(Record):
    """The lines in the given order, their differences, and how they were tuned.

    `seeds` are those that each line was repeated with; () if each line is one run.
    """

    lines: tuple[CellResult, ...]
    seeds: tuple[int, ...] = ()
    differences: tuple[Difference, ...] = ()
    tuning: Tuning | None = None
    notes: tuple[str, ...] = ()

    @property
    def runs(self) -> dict[str, ComparedRun]:
        """The runs, by the labels of their lines; {} if lines are over seeds."""
        labels = line_labels(self.lines)
        return {labels[line.name]: line.run for line in self.lines if line.run is not None}

    @property
    def attacks(self) -> Attacks:
        """Label and attack of the runs that were attacked."""
        return [(label, run.attack) for label, run in self.runs.items() if run.attack is not None]


def with_reports(line: CellResult, reports: Sequence[RunReport]) -> CellResult:
    """Return a line with the results of its seeds; unchanged without reports.

    A run that ended early is in no mean over seeds, but a line of one run shows its loss.
    """
    if not reports:
        return line
    finals = [report.utility.final for report in reports]
    averaged = {
        seed: report.utility.final
        for seed, report in zip(line.seeds, reports, strict=True)
        if is_finite(report.utility.final.loss) and not (report.ended_early and not line.run)
    }
    good = averaged.values()
    diverged = [
        report.diverged is not None or is_finite(report.utility.initial.loss)
        for report in reports  # without held-out text no loss is finite
        if not is_finite(report.utility.final.loss)
    ]
    starts = [report.utility.initial.loss for report in reports]
    whole = next((report for report in reports if report.diverged is None), reports[0])
    # Seeds share a plan except for their coins. The largest ε holds for all seeds; a seed without
    # a finite ε counts as infinite.
    promise = max(
        (whole, *reports),
        key=lambda one: math.inf if one.privacy.epsilon is None else one.privacy.epsilon,
    ).privacy
    rounds, expected = whole.cost.rounds, whole.cost.expected_gradients
    return line.model_copy(
        update={
            "privacy": promise,
            "budget": expected / rounds if expected is not None and rounds else None,
            "rounds": rounds,
            "losses": tuple(final.loss for final in finals),
            "loss": interval([final.loss for final in good]),
            "accuracy": interval([final.accuracy_top1 for final in good]),
            "start": math.fsum(starts) / len(starts),
            "averaged": tuple(averaged),
            "num_diverged": sum(diverged),
            "seconds": math.fsum(report.cost.seconds for report in reports),
        }
    )


def _loss(line: CellResult) -> str:
    return "diverged" if line.num_diverged and not line.loss else _interval(line, line.loss, 1.0, 4)


def _perplexity(line: CellResult) -> str:
    if line.loss is None or line.num_averaged > 1:
        return NOTHING
    return decimal_text(math.exp(min(line.loss.mean, 700.0)), 2)


COLUMNS: dict[str, Callable[[CellResult], str]] = {
    "loss": _loss,
    "ppl": _perplexity,
    "top-1": lambda line: _interval(line, line.accuracy, 100.0, 1, " %"),
    "start": lambda line: decimal_text(line.start),
    "ε": lambda line: epsilon_cell(line.privacy),
    "σ": lambda line: decimal_text(line.noise_multiplier),
    "grads": lambda line: count_text(line.budget),
    "chosen": lambda line: ", ".join(f"{key} = {value}" for key, value in line.chosen.items()),
    "seeds": lambda line: NOTHING if line.run else ", ".join(seed_counts(line)),
    "time": lambda line: duration_text(line.seconds) if line.losses else NOTHING,
}
"""The columns after a line's label. Short heads, to fit a terminal of 80 columns."""
HEADS_NOTE = "Loss, start: after and before training. grads: expected gradients per round."


def cells(line: CellResult) -> dict[str, str]:
    """Return a line's cells, by the head of their column."""
    return {head: cell(line) or NOTHING for head, cell in COLUMNS.items()}


def seed_counts(line: CellResult) -> list[str]:
    """Return the number of finished seeds, and of diverged, failed and early ones, if any."""
    counts = {
        "diverged": line.num_diverged,
        "failed": len(line.failures),
        "stopped early": len(line.stopped),
    }
    return [str(len(line.losses)), *(f"{count} {how}" for how, count in counts.items() if count)]


def line_parts(lines: Sequence[CellResult]) -> dict[str, tuple[str, ...]]:
    """Return the parts of each line's short label, by its name."""
    parts = label_parts([(line.source, line.settings) for line in lines])
    return dict(zip((line.name for line in lines), parts, strict=True))


def line_labels(lines: Sequence[CellResult]) -> dict[str, str]:
    """Return the short label of each line, by its name."""
    return {name: ", ".join(parts) for name, parts in line_parts(lines).items()}


def alike(lines: Sequence[CellResult]) -> list[tuple[str, list[CellResult]]]:
    """Group lines by config and terms of ε; return each group with a label.

    The label is the common part of the lines' labels, or all their labels if a line with other
    terms has the common part too.
    """
    groups: dict[tuple[str, str], list[CellResult]] = {}
    for line in lines:
        if line.terms:
            source = line.source if line.settings else ""  # finished runs have only their terms
            groups.setdefault((source, line.terms), []).append(line)
    parts, labelled = line_parts(lines), []
    for (source, group_terms), group in groups.items():
        own = [parts[line.name] for line in group]
        others = [parts[line.name] for line in lines if line.terms not in ("", group_terms)]
        label = _label(own, others) or source or "; ".join(map(", ".join, own))
        labelled.append((label, group))
    return labelled


def _label(group: Sequence[tuple[str, ...]], others: Sequence[tuple[str, ...]]) -> str:
    shared = [part for part in group[0] if all(part in parts for parts in group)]
    if any(set(shared) <= set(parts) for parts in others):
        return "; ".join(map(", ".join, group))
    return ", ".join(shared)


def terms(lines: Sequence[CellResult]) -> list[str]:
    """Return the terms of each ε, after the label of its lines."""
    return [f"{label}: {group[0].terms}" for label, group in alike(lines)]


INTERVAL_NOTE = (
    "Losses and accuracies are means over the seeds that finished all rounds, with Student's 95 % "
    f"interval; one seed has no interval. {TIES}"
)


def captions(result: GridResult) -> list[str]:
    """Return the sentences to read with the table: terms, tuning, failures, notes."""
    shared = common_part([(line.source, line.settings) for line in result.lines])
    lines = [f"Every line: {shared}."] if shared else []
    lines += [*terms(result.lines), HEADS_NOTE, UTILITY_NOTE]
    if result.seeds:
        lines.append(INTERVAL_NOTE)
    elif len(result.lines) > 1 and all(
        line.privacy is not None and line.privacy.noise != "secure" for line in result.lines
    ):
        lines.append(TIES)
    tuning = result.tuning
    if tuning is not None:
        cost = f"{tuning.runs} runs, {tuning.gradients:,} gradients, {tuning.seconds:,.0f} s"
        failed = f"{tuning.failures} runs failed; the cost does not include them. "
        lines.append(f"Tuning took {cost}. {failed if tuning.failures else ''}{tuning.statement}")
    lines += [f"Stopped early: {text}" for line in result.lines for text in line.stopped]
    lines += [f"Failed: {reason}" for line in result.lines for reason in line.failures]
    return [*lines, *result.notes]


def grid_table(result: GridResult) -> Table:
    """Return the table, without empty columns; its CSV has every field, setting and choice."""
    labels = line_labels(result.lines)
    rows = [(labels[line.name], cells(line)) for line in result.lines]
    heads = [head for head in COLUMNS if any(row[head] != NOTHING for _, row in rows)]
    return Table(
        ("setting", *heads),
        [[label, *(row[head] for head in heads)] for label, row in rows],
        captions(result),
        records=records(result),
    )


def records(result: GridResult) -> list[dict[str, object]]:
    """Return one record per line; only lines with a setting or a chosen value have its key."""
    return [_record(line) for line in result.lines]


def _record(line: CellResult) -> dict[str, object]:
    parts = {"privacy", "settings", "chosen", "loss", "accuracy", "stopped", "averaged", "run"}
    record: dict[str, object] = {
        **line.model_dump(exclude=parts),
        **privacy_record(line.privacy),
        "terms": line.terms,
        "num_failed": len(line.failures),
        "num_stopped": len(line.stopped),
        "num_seeds": len(line.losses),
        "num_averaged": line.num_averaged,
        "seeds": " ".join(map(str, line.seeds)),
        "losses": " ".join(f"{loss:.17g}" for loss in line.losses),
        "failures": "; ".join(line.failures),
    }
    for name, value in (("loss", line.loss), ("accuracy_top1", line.accuracy)):
        record |= {f"{name}_{part}": getattr(value, part, None) for part in ("mean", "low", "high")}
    record |= {f"set.{key}": value for key, value in line.settings.items()}
    return record | {f"chosen.{key}": value for key, value in line.chosen.items()}


def _interval(
    line: CellResult, value: Interval | None, scale: float, digits: int, unit: str = ""
) -> str:
    if value is None:
        return NOTHING
    if line.num_averaged == 1:
        return f"{decimal_text(scale * value.mean, min(digits, 3))}{unit}"
    mean = f"{scale * value.mean:.{digits}f}"
    return f"{mean} ± {scale * (value.high - value.mean):.{digits}f}{unit}"


def comparison_notes(reports: Sequence[RunReport], *, of_budgets: bool = True) -> list[str]:
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
    if of_budgets and budgets and max(budgets) > 1.01 * min(budgets):
        notes.append("The runs had different gradient budgets.")
    return notes
