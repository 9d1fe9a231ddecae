"""A measured grid drawn: loss over ε and over budgets, or a row for each line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fedsim.report.charts import (
    Axis,
    Chart,
    Cross,
    Level,
    Panel,
    Point,
    Series,
    in_rows,
    start_levels,
)
from fedsim.report.grid_result import (
    CellResult,
    GridResult,
    Interval,
    alike,
    interval_note,
    terms,
)
from fedsim.report.schema import is_finite
from fedsim.report.style import colour, dash, shorten
from fedsim.report.wording import NOT_COVERED, epsilon_text

UNCOVERED = f"Loss: {NOT_COVERED}."
LOSS = "held-out loss, nats a token"
CROSS_ROW = 0.075  # of the height, for a cross and what it says
LEVEL_POINTS = 33  # of a level's band, so that a pointer finds one anywhere

Over = Literal["epsilon", "budget"]
# The setting's label in a grid: the last part of its key, or all of it where two end alike.
LABELS = {"epsilon": ("epsilon", "privacy.epsilon"), "budget": ("budget",)}
TITLES: dict[Over, tuple[str, str]] = {
    "epsilon": ("Privacy and loss", "ε (logarithmic)"),
    "budget": ("Compute and loss", "expected gradients a round (logarithmic)"),
}


class Group(NamedTuple):
    """The panels of one section; `against` says what losses are drawn over."""

    title: str
    against: str
    panels: list[Panel]


class Place(NamedTuple):
    """A line at its place on the axis."""

    at: float
    line: CellResult


@dataclass(frozen=True)
class Curve:
    """Lines that differ in nothing but ε and budget.

    Attributes:
        label: the config's name and the other settings.
        index: of its colour, the same in every panel.
        places: in increasing order.
        level: without a guarantee, over ε: one loss at every ε.
    """

    label: str
    index: int
    places: tuple[Place, ...]
    level: bool = False


@dataclass(frozen=True)
class Slice:
    """Lines with the same value of the other setting.

    Attributes:
        title: that value, "ε = 4" or "64 gradients a round"; may be empty.
        curves: at least one.
        lines: all that are in it.
    """

    title: str
    curves: tuple[Curve, ...]
    lines: tuple[CellResult, ...]


def grid_chart(result: GridResult) -> Chart:
    """Return the picture: a row of panels over ε and one over budgets, or a row for each line."""
    notes = [f"{text}." for text in terms(result.lines)]
    tuned = [] if result.tuning is None else [result.tuning.statement]
    lost = [
        f"{sum(counts)} {what}."
        for what, counts in (
            ("runs stopped early, which no mean has", [len(line.stopped) for line in result.lines]),
            ("runs failed", [len(line.failures) for line in result.lines]),
        )
        if any(counts)
    ]
    return Chart(
        [row for group in grid_panels(result) for row in in_rows(group.panels)],
        [*notes, interval_note(result.lines), UNCOVERED, *tuned, *lost, *result.notes],
    )


def grid_panels(result: GridResult) -> list[Group]:
    """Return panels over ε and over budgets, of those that vary, else a row for each line.

    What failed, diverged or lies far above the start is a cross that says so.
    """
    lines = result.lines
    groups = [
        Group(title, label, _panels(lines, over))
        for over, (title, label) in TITLES.items()
        if values_of(lines, over)
    ]
    return groups or [Group("Loss", "lines", [_rows(lines)])]


def values_of(lines: Sequence[CellResult], over: Over) -> list[float]:
    """Return the values of ε or budget that a grid asked for, if there are several."""
    values = sorted({value for line in lines if (value := requested(line, over))})
    return values if len(values) > 1 else []


def requested(line: CellResult, over: Over) -> float | None:
    """Return the ε or the budget that the grid set, None where it set none."""
    for label in LABELS[over]:
        try:
            value = float(line.settings[label])
        except (KeyError, ValueError):
            continue
        if 0 < value < math.inf:
            return value
    return None


def curve_label(line: CellResult) -> str:
    """Return the config's name with the settings that are neither ε nor budget."""
    axes = {label for labels in LABELS.values() for label in labels}
    others = [f"{key} = {value}" for key, value in line.settings.items() if key not in axes]
    return ", ".join([line.source, *others])


def slices(lines: Sequence[CellResult], over: Over) -> list[Slice]:
    """Return the grid cut at each value of the other setting (Charles et al. 2024, §5).

    Every line is in a slice, also those that failed.
    """
    other: Over = "budget" if over == "epsilon" else "epsilon"
    labels = list(dict.fromkeys(map(curve_label, lines)))
    values: list[float | None] = [*sorted({v for line in lines if (v := requested(line, other))})]
    first, cut = min(values_of(lines, over)), []
    # A line to which the grid gave no such value (only the API can) belongs to every slice.
    for held in values or [None]:
        inside = [line for line in lines if held is None or requested(line, other) in (held, None)]
        curves = [_curve(label, index, inside, over, first) for index, label in enumerate(labels)]
        title = "" if held is None else "ε = {:g}" if over == "budget" else "{:g} gradients a round"
        kept = tuple(curve for curve in curves if curve.places)
        cut.append(Slice(title.format(held), kept, tuple(inside)))
    return cut


def loss_limits(lines: Iterable[CellResult]) -> tuple[float, float]:
    """Return a range of losses that shows what was learnt; what blew up does not flatten it.

    From the best mean to the worst start and as much again above; an interval is shown as far as
    that. Without any finite loss, 0 to 1.
    """
    lines = list(lines)
    found = [line.loss for line in lines if line.loss is not None]
    means = [loss.mean for loss in found if is_finite(loss.mean)]
    starts = [line.start for line in lines if line.start is not None and is_finite(line.start)]
    if not means:
        return (0.0, 1.25 * max(starts)) if starts else (0.0, 1.0)
    level = max(starts) if starts else max(means)
    room = max(level - min(means), 0.02 * abs(level), 1e-6)
    highest, lowest = level + room, min(means) - room
    ends = [*means, *starts, *(end for one in found for end in (one.low, one.high))]
    shown = [min(max(end, lowest), highest) for end in ends]
    pad = 0.06 * (max(shown) - min(shown))
    return min(shown) - pad, max(shown) + pad


def visible_loss(line: CellResult, span: tuple[float, float]) -> Interval | None:
    """Return the loss if there is one in the range that is shown."""
    shown = line.loss is not None and span[0] <= line.loss.mean <= span[1]
    return line.loss if shown else None


def problem_text(line: CellResult, span: tuple[float, float]) -> str:
    """Return what a cross must say of a line: what failed, diverged, or is off the scale."""
    total = len(line.losses) + len(line.failures)
    parts = []
    if line.failures:
        of = f"{len(line.failures)} of {total} " if line.losses else ""
        parts.append(f"{of}failed")
    if line.num_diverged:
        parts.append(f"{line.num_diverged} of {total} diverged")
    if line.loss is not None and visible_loss(line, span) is None:
        parts.append(f"loss {line.loss.mean:.4g}")
    return ", ".join(parts)


def hover_lines(line: CellResult) -> tuple[str, ...]:
    """Return all that a point stands for: the loss, and its ε with its terms."""
    parts = [shorten(line.name, 70)]
    if line.loss is not None:
        parts.append(f"held-out loss {line.loss.mean:.4f}")
        if line.num_averaged > 1:
            parts.append(f"95 % interval {line.loss.low:.4f} to {line.loss.high:.4f}")
    parts.append(f"{len(line.losses)} seeds, {line.num_diverged} diverged")
    if line.stopped:
        parts.append(f"{len(line.stopped)} stopped early")
    parts += [shorten(f"failed: {reason}", 90) for reason in line.failures]
    if line.budget is not None:
        parts.append(f"{line.budget:,.1f} expected gradients a round")
    if line.epsilon is not None:
        parts.append(f"ε = {epsilon_text(line.epsilon)}")
    return (*parts, *(part.strip() for part in line.terms.split(";") if part.strip()))


def _panels(lines: Sequence[CellResult], over: Over) -> list[Panel]:
    cut, ticks, (title, label) = slices(lines, over), values_of(lines, over), TITLES[over]
    xs = [place.at for part in cut for curve in part.curves for place in curve.places]
    low, high = min(*xs, *ticks), max(*xs, *ticks)
    room = (high / low) ** 0.07
    reach, span = (low / room, high * room), loss_limits(lines)
    problems = [
        [
            (curve, place, said)
            for curve in part.curves
            for place in curve.places
            if (said := problem_text(place.line, span))
        ]
        for part in cut
    ]
    # Room above the losses for the start's name and the crosses of any panel.
    taken = CROSS_ROW * (1 + max(map(len, problems)))
    top = span[0] + (span[1] - span[0]) / max(1 - taken, 0.4)
    return [
        Panel(
            f"{over}-{number}",
            part.title or title,
            _caption(part.lines, lines),
            [one for curve in part.curves if (one := _series(curve, span, reach)) is not None],
            x=Axis(label, log=True, limits=reach, ticks=ticks),
            y=Axis(LOSS, limits=(span[0], top)),
            levels=_starts(part.lines),
            crosses=[
                Cross(
                    place.at,
                    top - (top - span[0]) * CROSS_ROW * (row + 0.5),
                    f"{shorten(curve.label, 24)}: {said}",
                    colour(curve.index),
                    on_left=place.at > math.sqrt(reach[0] * reach[1]),
                    hover=hover_lines(place.line),
                )
                for row, (curve, place, said) in enumerate(crosses)
            ],
            legend=True,
            closest=True,
            zoom=True,
        )
        for number, (part, crosses) in enumerate(zip(cut, problems, strict=True))
    ]


def _rows(lines: Sequence[CellResult]) -> Panel:
    span = loss_limits(lines)
    return Panel(
        "lines",
        "Held-out loss",
        _caption(lines, lines),
        [
            Series(shorten(line.name, 44), [_point(row, loss, line)], colour(row), marks=True)
            for row, line in enumerate(lines)
            if (loss := visible_loss(line, span)) is not None
        ],
        x=Axis(LOSS, limits=span),
        levels=_starts(lines),
        crosses=[
            Cross(row, span[1], said, colour(row), on_left=True, hover=hover_lines(line))
            for row, line in enumerate(lines)
            if (said := problem_text(line, span))
        ],
        rows=[_row_text(line) for line in lines],
        closest=True,
        zoom=True,
    )


def _row_text(line: CellResult) -> str:
    promise = "" if line.epsilon is None else f", ε = {epsilon_text(line.epsilon)}"
    supposed = " (hypothetical)" if line.hypothetical else ""
    return f"{shorten(line.name, 40)}{promise}{supposed}"


def _curve(label: str, index: int, lines: Sequence[CellResult], over: Over, first: float) -> Curve:
    mine = [line for line in lines if curve_label(line) == label]
    level = over == "epsilon" and any(line.losses and line.epsilon is None for line in mine)
    places = [Place(_place(line, over) or first, line) for line in mine]
    return Curve(label, index, tuple(sorted(places, key=lambda place: place.at)), level)


def _place(line: CellResult, over: Over) -> float | None:
    """Return the ε or budget that was reached, or what was asked for where nothing ran."""
    reached = line.epsilon if over == "epsilon" else line.budget
    return reached if reached and is_finite(reached) else requested(line, over)


def _series(curve: Curve, span: tuple[float, float], reach: tuple[float, float]) -> Series | None:
    """Return what is in the range that is shown; of a level, the first, from end to end."""
    found = [(place, loss) for place in curve.places if (loss := visible_loss(place.line, span))]
    points = [_point(place.at, loss, place.line) for place, loss in found]
    if not points:
        return None
    if curve.level:
        shares = [number / (LEVEL_POINTS - 1) for number in range(LEVEL_POINTS)]
        ats = [reach[0] * (reach[1] / reach[0]) ** share for share in shares]
        points = [points[0]._replace(at=at) for at in ats]
    name, hue = shorten(curve.label, 44), colour(curve.index)
    return Series(name, points, hue, dash(curve.index), marks=not curve.level, band=True)


def _point(at: float, loss: Interval, line: CellResult) -> Point:
    return Point(at, loss.mean, loss.low, loss.high, hover_lines(line))


def _starts(lines: Iterable[CellResult]) -> list[Level]:
    """Return a level for each start; a difference in the sixth digit is none."""
    kept: list[float] = []
    for line in lines:
        start = line.start
        if start is not None and not any(math.isclose(start, o, rel_tol=1e-6) for o in kept):
            kept.append(start)
    return start_levels(kept)


def _caption(shown: Iterable[CellResult], lines: Sequence[CellResult]) -> str:
    names = {line.name for line in shown}
    groups = [(label, of) for label, of in alike(lines) if any(one.name in names for one in of)]
    return " ".join([*(f"{label}: {of[0].terms}." for label, of in groups), UNCOVERED])
