"""The table of a measurement."""

from __future__ import annotations

from fedsim.report.measured.lines import Interval, Line, Measurement
from fedsim.report.tables import UTILITY_NOTE, Table
from fedsim.report.wording import NOTHING, epsilon_text

HEADS = ("setting", "ε", "gradients a round", "chosen", "seeds", "held-out loss", "top-1")
INTERVAL_NOTE = (
    "Losses and accuracies are means over seeds, with Student's 95 % interval; a seed has coins, "
    "noise and a split of its own."
)


def cells(line: Line) -> list[str]:
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
        _interval(line.loss, 1.0, 4),
        _interval(line.accuracy, 100.0, 1),
    ]


def terms(measurement: Measurement) -> list[str]:
    """Return what every ε is an ε of, each config's name in front."""
    return list(
        dict.fromkeys(f"{line.source}: {line.terms}" for line in measurement.lines if line.terms)
    )


def captions(measurement: Measurement) -> list[str]:
    """Return what has to be read with the table: terms, tuning, failures, notes."""
    lines = [*terms(measurement), INTERVAL_NOTE, UTILITY_NOTE]
    tuning = measurement.tuning
    if tuning is not None:
        cost = f"{tuning.runs} runs, {tuning.gradients:,} gradients, {tuning.seconds:,.0f} s"
        failed = f"{tuning.failures} of them failed: that is at least what they took. "
        lines.append(f"Tuning took {cost}. {failed if tuning.failures else ''}{tuning.statement}")
    lines += [f"Stopped early: {said}" for line in measurement.lines for said in line.stopped]
    lines += [f"Failed: {reason}" for line in measurement.lines for reason in line.failures]
    return [*lines, *measurement.notes]


def measurement_table(measurement: Measurement) -> Table:
    """Return the table; its CSV has settings and chosen values in columns of their own."""
    rows = [cells(line) for line in measurement.lines]
    return Table(HEADS, rows, captions(measurement), records=records(measurement))


def records(measurement: Measurement) -> list[dict[str, object]]:
    """Return a record a line, all with the same keys; what a line lacks is None."""
    found = [_record(line) for line in measurement.lines]
    keys = dict.fromkeys(key for record in found for key in record)
    return [{key: record.get(key) for key in keys} for record in found]


def _record(line: Line) -> dict[str, object]:
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


def _seeds(line: Line) -> str:
    parts = [str(len(line.losses))]
    if line.num_diverged:
        parts.append(f"{line.num_diverged} diverged")
    if line.failures:
        parts.append(f"{len(line.failures)} failed")
    return ", ".join(parts)


def _interval(value: Interval | None, scale: float, digits: int) -> str:
    if value is None:
        return NOTHING
    mean = f"{scale * value.mean:.{digits}f}"
    if value.low == value.high:
        return mean
    return f"{mean} ± {scale * (value.high - value.mean):.{digits}f}"
