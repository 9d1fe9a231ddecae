"""What the plots of a measured grid show, for the picture and the page alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fedsim.report.measured.lines import Interval, Line, Measurement
from fedsim.report.schema import is_finite

Axis = Literal["epsilon", "budget"]
AXES: tuple[Axis, Axis] = ("epsilon", "budget")
# The setting's label in a grid: the last part of its key, or all of it where two end alike.
LABELS = {"epsilon": ("epsilon", "privacy.epsilon"), "budget": ("budget",)}


class Spot(NamedTuple):
    """A line at its place on the axis."""

    x: float
    line: Line


@dataclass(frozen=True)
class Series:
    """Lines that differ in nothing but ε and budget.

    Attributes:
        label: the config's name and the other settings.
        index: of its colour, the same in every panel.
        spots: in increasing order of x.
        level: without a guarantee, over ε: one loss at every ε.
    """

    label: str
    index: int
    spots: tuple[Spot, ...]
    level: bool = False

    def curve(self, span: tuple[float, float]) -> list[tuple[Spot, Interval]]:
        """Return the spots whose loss is in the range that is shown; of a level, the first."""
        found = [(spot, loss) for spot in self.spots if (loss := drawn(spot.line, span))]
        return found[:1] if self.level else found


@dataclass(frozen=True)
class Panel:
    """One plot.

    Attributes:
        held: what is the same for all of it, "ε = 4" or "64 gradients a round"; may be empty.
        series: at least one.
        starts: distinct losses of starting points.
    """

    held: str
    series: tuple[Series, ...]
    starts: tuple[float, ...]


@dataclass(frozen=True)
class Chart:
    """Panels over the same axis, with the same scale of losses.

    Attributes:
        axis: over which losses are drawn, in logarithmic scale.
        ticks: the values on it, as asked for.
        limits: of the losses.
    """

    axis: Axis
    panels: tuple[Panel, ...]
    ticks: tuple[float, ...]
    limits: tuple[float, float]

    @property
    def title(self) -> str:
        """What is drawn against what."""
        return "Privacy and loss" if self.axis == "epsilon" else "Compute and loss"

    @property
    def labels(self) -> list[str]:
        """Of all series, in the order of their colours."""
        names = {one.index: one.label for panel in self.panels for one in panel.series}
        return [names[index] for index in sorted(names)]

    @property
    def reach(self) -> tuple[float, float]:
        """The ends of the axis: all spots, and a little room."""
        xs = [spot.x for p in self.panels for one in p.series for spot in one.spots]
        low, high = min(*xs, *self.ticks), max(*xs, *self.ticks)
        room = (high / low) ** 0.07
        return low / room, high * room

    def troubles(self, panel: Panel) -> list[tuple[Series, Spot, str]]:
        """Return what a cross must be drawn for, and what it says."""
        return [
            (series, spot, said)
            for series in panel.series
            for spot in series.spots
            if (said := trouble(spot.line, self.limits))
        ]

    def top(self, share: float) -> float:
        """Return where losses end, with room above for the start's name and any panel's crosses.

        Args:
            share: of the whole height, that one cross takes.
        """
        rows = 1 + max(len(self.troubles(panel)) for panel in self.panels)
        low, high = self.limits
        return low + (high - low) / max(1 - share * rows, 0.4)

    @property
    def axis_title(self) -> str:
        """With the unit and the scale."""
        name = "ε" if self.axis == "epsilon" else "expected gradients a round"
        return f"{name} (logarithmic)"


def charts(measurement: Measurement) -> list[Chart]:
    """Return a chart over ε and one over budgets, of those that vary (Charles et al. 2024, §5).

    The panels of one are the values of the other. Every line is in a panel, also those that
    failed; where neither varies there is no chart.
    """
    found = []
    for axis in AXES:
        ticks = sorted({value for line in measurement.lines if (value := asked(line, axis))})
        if len(ticks) > 1:
            panels = _panels(measurement.lines, axis, ticks[0])
            found.append(Chart(axis, panels, tuple(ticks), limits(measurement.lines)))
    return found


def asked(line: Line, axis: Axis) -> float | None:
    """Return the ε or the budget that the grid set, None where it set none."""
    for label in LABELS[axis]:
        try:
            value = float(line.settings[label])
        except (KeyError, ValueError):
            continue
        if 0 < value < math.inf:
            return value
    return None


def series_label(line: Line) -> str:
    """Return the config's name with the settings that are neither ε nor budget."""
    axes = {label for labels in LABELS.values() for label in labels}
    others = [f"{key} = {value}" for key, value in line.settings.items() if key not in axes]
    return ", ".join([line.source, *others])


def limits(lines: Iterable[Line]) -> tuple[float, float]:
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


def drawn(line: Line, span: tuple[float, float]) -> Interval | None:
    """Return the loss if there is one in the range that is shown."""
    shown = line.loss is not None and span[0] <= line.loss.mean <= span[1]
    return line.loss if shown else None


def trouble(line: Line, span: tuple[float, float]) -> str:
    """Return what a mark must say of a line: what failed, diverged, or is off the scale."""
    total = len(line.losses) + len(line.failures)
    parts = []
    if line.failures:
        of = f"{len(line.failures)} of {total} " if line.losses else ""
        parts.append(f"{of}failed")
    if line.num_diverged:
        parts.append(f"{line.num_diverged} of {total} diverged")
    if line.loss is not None and drawn(line, span) is None:
        parts.append(f"loss {line.loss.mean:.4g}")
    return ", ".join(parts)


def distinct(values: Iterable[float | None]) -> tuple[float, ...]:
    """Return the finite ones, each once; a difference in the sixth digit is none."""
    kept: list[float] = []
    for value in values:
        if value is None or not is_finite(value):
            continue
        if not any(math.isclose(value, other, rel_tol=1e-6) for other in kept):
            kept.append(value)
    return tuple(kept)


def _panels(lines: Sequence[Line], axis: Axis, first: float) -> tuple[Panel, ...]:
    other: Axis = "budget" if axis == "epsilon" else "epsilon"
    labels = list(dict.fromkeys(series_label(line) for line in lines))
    values: list[float | None] = [*sorted({v for line in lines if (v := asked(line, other))})]
    panels = []
    # A line to which the grid gave no such value (only the API can) belongs to every panel.
    for held in values or [None]:
        inside = [line for line in lines if held is None or asked(line, other) in (held, None)]
        series = (
            _series(label, number, inside, axis, first) for number, label in enumerate(labels)
        )
        panels.append(
            Panel(
                _held(other, held),
                tuple(one for one in series if one.spots),
                distinct(line.start for line in inside),
            )
        )
    return tuple(panels)


def _series(label: str, index: int, lines: Sequence[Line], axis: Axis, first: float) -> Series:
    mine = [line for line in lines if series_label(line) == label]
    level = axis == "epsilon" and any(line.losses and line.epsilon is None for line in mine)
    spots = [Spot(_place(line, axis) or first, line) for line in mine]
    return Series(label, index, tuple(sorted(spots, key=lambda spot: spot.x)), level)


def _place(line: Line, axis: Axis) -> float | None:
    """Return the ε or budget that was reached, or what was asked for where nothing ran."""
    reached = line.epsilon if axis == "epsilon" else line.budget
    return reached if reached and is_finite(reached) else asked(line, axis)


def _held(axis: Axis, value: float | None) -> str:
    if value is None:
        return ""
    return f"ε = {value:g}" if axis == "epsilon" else f"{value:g} gradients a round"
