"""The result of a grid over seeds: a line for each setting, with an interval over its seeds.

A line keeps the terms of its ε. A seed that diverged or failed is counted and shown, never left
out: a mean over the others stands beside that count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from scipy.stats import t as student

from fedsim.report.schema import Count, NotNegative, Number, Record, RunReport, is_finite
from fedsim.report.tables import UTILITY_NOTE, Table
from fedsim.report.wording import NOTHING, epsilon_text, terms_text

CONFIDENCE = 0.95
TERMS = (
    *("epsilon", "delta", "noise_multiplier", "unit", "relation", "sampler", "accountant"),
    "hypothetical",
)
HEADS = ("setting", "ε", "gradients a round", "chosen", "seeds", "held-out loss", "top-1")


class Interval(Record):
    """A mean over seeds with Student's confidence interval; of one seed, the value thrice."""

    mean: Number
    low: Number
    high: Number


class CellResult(Record):
    """The result of one cell of a grid: one setting, over its seeds.

    Attributes:
        name: of the setting; its runs are called `<name>,seed=<s>`.
        source: the config file's stem.
        strategy: its name.
        settings: what varies, label to value as typed.
        chosen: what tuning chose, label to value.
        epsilon: the promise, with its terms; None without one.
        noise: "secure", "seeded" or "none".
        budget: expected gradients a round.
        rounds: done, by those that finished.
        seeds: of the runs that finished, in their order.
        losses: held-out loss of each of these seeds; NaN where it diverged.
        loss: over the finite ones of runs that did all their rounds; None where there is none.
        accuracy: top-1, likewise.
        start: held-out loss of the starting point, the mean over the seeds' splits.
        averaged: how many runs `loss` is a mean over; None: of all that have a finite one.
        num_halted: runs that their strategy ended; `stopped` says why.
        num_diverged: runs that ended without a finite loss.
        stopped: a sentence for each run that ended before its last round; no mean has it.
        failures: a sentence for each run that left no report.
        terms: what ε is an ε of.
    """

    name: str
    source: str
    strategy: str
    settings: dict[str, str]
    chosen: dict[str, str]
    epsilon: NotNegative | None = None
    delta: NotNegative | None = None
    noise_multiplier: NotNegative | None = None
    unit: str | None = None
    relation: str | None = None
    sampler: str | None = None
    accountant: str | None = None
    hypothetical: bool = False
    noise: Literal["secure", "seeded", "none"] | None = None
    budget: NotNegative | None = None
    rounds: Count | None = None
    seeds: tuple[int, ...] = ()
    losses: tuple[Number, ...] = ()
    loss: Interval | None = None
    accuracy: Interval | None = None
    start: Number | None = None
    averaged: Count | None = None
    num_halted: Count = 0
    num_diverged: Count = 0
    stopped: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    seconds: NotNegative = 0.0
    terms: str = ""

    @property
    def num_averaged(self) -> int:
        """How many runs `loss` is a mean over."""
        finite = sum(map(math.isfinite, self.losses))
        return finite if self.averaged is None else self.averaged


class Tuning(Record):
    """What was tried to choose settings, and what that would have cost.

    Attributes:
        keys: what was varied.
        runs: how many.
        failures: of them, that left no report; the numbers below are of the others.
        gradients: that they computed.
        seconds: that they took.
        tried: line name to setting to its loss; NaN where it diverged or failed.
        statement: whose text chose, and that no ε accounts for it.
    """

    keys: tuple[str, ...]
    runs: Count
    failures: Count = 0
    gradients: Count
    seconds: NotNegative
    tried: dict[str, dict[str, Number]]
    statement: str


class GridResult(Record):
    """The cells' results in the order of the grid, and how their settings were chosen."""

    lines: tuple[CellResult, ...]
    seeds: tuple[int, ...]
    tuning: Tuning | None = None
    notes: tuple[str, ...] = ()


def interval(values: Sequence[float]) -> Interval | None:
    """Return mean and 95 % interval of values that are taken for independent and normal.

    Returns None of none. One value has no spread that could be known: the interval is that point.
    """
    count = len(values)
    if not count:
        return None
    mean = math.fsum(values) / count
    if count == 1:
        return Interval(mean=mean, low=mean, high=mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = float(student.ppf((1 + CONFIDENCE) / 2, count - 1)) * math.sqrt(variance / count)
    return Interval(mean=mean, low=mean - half, high=mean + half)


def with_reports(line: CellResult, reports: Sequence[RunReport]) -> CellResult:
    """Return a line with what the reports of its seeds say; as it was where there are none."""
    if not reports:
        return line
    finals = [report.utility.final for report in reports]
    good = [
        report.utility.final
        for report in reports
        if is_finite(report.utility.final.loss) and not report.ended_early
    ]
    lost = [
        report.diverged is not None or is_finite(report.utility.initial.loss)
        for report in reports  # else no text is held out
        if not is_finite(report.utility.final.loss)
    ]
    starts = [report.utility.initial.loss for report in reports]
    whole = next((report for report in reports if report.diverged is None), reports[0])
    # Seeds share a plan up to their coins, and the largest ε is what can be said of all; one with
    # no finite ε leaves none.
    promise = max((whole, *reports), key=lambda each: _or_infinite(each.privacy.epsilon)).privacy
    cost = whole.cost
    terms = {name: getattr(promise, name) for name in TERMS}
    if promise.epsilon is None:
        terms |= dict.fromkeys(("delta", "unit", "relation"))
    expected = cost.expected_gradients
    values = {
        **terms,
        "budget": expected / cost.rounds if expected is not None and cost.rounds else None,
        "rounds": cost.rounds,
        "losses": tuple(final.loss for final in finals),
        "loss": interval([final.loss for final in good]),
        "accuracy": interval([final.accuracy_top1 for final in good]),
        "start": math.fsum(starts) / len(starts),
        "averaged": len(good),
        "num_diverged": sum(lost),
        "seconds": math.fsum(report.cost.seconds for report in reports),
        "noise": promise.noise,
        "terms": terms_text(promise),
    }
    return CellResult.model_validate({**dict(line), **values})


def _or_infinite(epsilon: float | None) -> float:
    return math.inf if epsilon is None else epsilon


def cells(line: CellResult) -> list[str]:
    """Return a line as displayed, a cell for each of `HEADS`."""
    epsilon = "none" if line.epsilon is None and line.losses else epsilon_text(line.epsilon)
    if line.hypothetical:
        epsilon += " (hypothetical)"
    return [
        line.name,
        epsilon,
        NOTHING if line.budget is None else f"{line.budget:,.0f}",
        ", ".join(f"{key} = {value}" for key, value in line.chosen.items()) or NOTHING,
        _seeds(line),
        _interval(line, line.loss, 1.0, 4),
        _interval(line, line.accuracy, 100.0, 1, " %"),
    ]


def alike(lines: Sequence[CellResult]) -> list[tuple[str, list[CellResult]]]:
    """Return the lines of each config and the same terms, with what their names have in common.

    Where a line with other terms has all that in its name too, the label is all of their names.
    """
    groups: dict[tuple[str, str], list[CellResult]] = {}
    for line in lines:
        if line.terms:
            groups.setdefault((line.source, line.terms), []).append(line)
    return [(_label(group, lines), group) for group in groups.values()]


def _label(group: Sequence[CellResult], lines: Sequence[CellResult]) -> str:
    shared = _shared(group)
    others = [line for line in lines if line.terms and line.terms != group[0].terms]
    if any(set(shared) <= set(line.name.split(",")) for line in others):
        return "; ".join(line.name for line in group)
    return ",".join(shared) or group[0].source


def _shared(lines: Sequence[CellResult]) -> list[str]:
    first, *others = (line.name.split(",") for line in lines)
    return [part for part in first if all(part in name for name in others)]


def terms(lines: Sequence[CellResult]) -> list[str]:
    """Return what every ε is an ε of, behind what the lines of it are called."""
    return [f"{label}: {group[0].terms}" for label, group in alike(lines)]


def interval_note(lines: Sequence[CellResult]) -> str:
    """Return what losses and accuracies are, with the number of seeds that a mean is over."""
    counts = {line.num_averaged for line in lines if line.num_averaged} or {0}
    least, most = min(counts), max(counts)
    span = f"{most}" if least == most else f"{least} to {most}"
    means = f"means over {span} seeds, with Student's 95 % interval"
    return (
        f"Losses and accuracies are {means if most > 1 else 'of one seed, without an interval'}; "
        "a seed has coins and noise of its own, and a split where that is drawn."
    )


def captions(result: GridResult) -> list[str]:
    """Return what has to be read with the table: terms, tuning, failures, notes."""
    lines = [*terms(result.lines), interval_note(result.lines), UTILITY_NOTE]
    tuning = result.tuning
    if tuning is not None:
        cost = f"{tuning.runs} runs, {tuning.gradients:,} gradients, {tuning.seconds:,.0f} s"
        failed = f"{tuning.failures} of them failed: that is at least what they took. "
        lines.append(f"Tuning took {cost}. {failed if tuning.failures else ''}{tuning.statement}")
    lines += stopped_texts(result)
    lines += [f"Failed: {reason}" for line in result.lines for reason in line.failures]
    return [*lines, *result.notes]


def stopped_texts(result: GridResult) -> list[str]:
    """Return a sentence for each run that ended before its last round."""
    return [f"Stopped early: {said}" for line in result.lines for said in line.stopped]


def grid_table(result: GridResult) -> Table:
    """Return the table; its CSV has settings and chosen values in columns of their own."""
    rows = [cells(line) for line in result.lines]
    return Table(HEADS, rows, captions(result), records=records(result))


def terminal_table(result: GridResult) -> Table:
    """Return the table with short names: what all lines have in common stands above it once."""
    shared = _shared(result.lines) if result.lines else []
    names = [line.name.split(",") for line in result.lines]
    short = [",".join(part for part in name if part not in shared) for name in names]
    if not shared or not all(short):
        return grid_table(result)
    lines = zip(result.lines, short, strict=True)
    renamed = tuple(line.model_copy(update={"name": name}) for line, name in lines)
    table = grid_table(result.model_copy(update={"lines": renamed}))
    return replace(table, notes=[f"Every line: {', '.join(shared)}.", *table.notes])


def records(result: GridResult) -> list[dict[str, object]]:
    """Return a record a line, all with the same keys; what a line lacks is None."""
    found = [_record(line) for line in result.lines]
    keys = dict.fromkeys(key for record in found for key in record)
    return [{key: record.get(key) for key in keys} for record in found]


def _record(line: CellResult) -> dict[str, object]:
    fixed = line.model_dump(
        exclude={"settings", "chosen", "seeds", "losses", "loss", "accuracy", "failures", "stopped"}
    )
    record = {
        **fixed,
        "num_failed": len(line.failures),
        "num_stopped": len(line.stopped),
        "num_seeds": len(line.losses),
    }
    for name, value in (("loss", line.loss), ("accuracy_top1", line.accuracy)):
        for part in ("mean", "low", "high"):
            record[f"{name}_{part}"] = None if value is None else getattr(value, part)
    record["seeds"] = " ".join(map(str, line.seeds))
    record["losses"] = " ".join(f"{loss:.17g}" for loss in line.losses)
    record["failures"] = "; ".join(line.failures)
    record |= {f"set.{key}": value for key, value in line.settings.items()}
    return record | {f"chosen.{key}": value for key, value in line.chosen.items()}


def _seeds(line: CellResult) -> str:
    parts = [str(len(line.losses))]
    if line.num_diverged:
        parts.append(f"{line.num_diverged} diverged")
    if line.failures:
        parts.append(f"{len(line.failures)} failed")
    if line.stopped:
        parts.append(f"{len(line.stopped)} stopped early")
    return ", ".join(parts)


def _interval(
    line: CellResult, value: Interval | None, scale: float, digits: int, unit: str = ""
) -> str:
    if value is None:
        return NOTHING
    mean = f"{scale * value.mean:.{digits}f}"
    if line.num_averaged == 1:
        return f"{mean}{unit}"
    return f"{mean} ± {scale * (value.high - value.mean):.{digits}f}{unit}"
