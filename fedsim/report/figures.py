"""Figures as plain values: panels with series and levels. `drawing.py` draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedsim.report.style import GREY
from fedsim.report.wording import NOT_COVERED, decimal_text

UNCOVERED = f"{NOT_COVERED[0].upper()}{NOT_COVERED[1:]}."
COLUMNS = 3  # of panels in a picture


class Point(NamedTuple):
    """A value at its place; NaN is a gap in a line.

    `low` and `high` are the ends of its interval.
    """

    at: float
    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        name: for the legend.
        points: from left to right.
        colour: as "#rrggbb".
        dash: matplotlib's line style.
        width: in points.
        marks: whether each point is a dot, with its interval as a bar.
        band: whether the intervals are a band, too.
    """

    name: str
    points: Sequence[Point]
    colour: str = GREY
    dash: str = "-"
    width: float = 1.6
    marks: bool = False
    band: bool = False


class Level(NamedTuple):
    """A dashed line across the whole panel, at a value."""

    value: float
    text: str


@dataclass(frozen=True)
class Axis:
    """An axis. Without limits they follow from the data; `from_zero` begins it at zero."""

    label: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] = ()
    from_zero: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot. More than one series gives it a legend.

    Attributes:
        key: a name for the page, of letters, digits and hyphens.
        title: above it.
        caption: below it.
        series: drawn in this order.
        x: along which points have their place.
        y: of the values.
        levels: such as the loss of the starting point.
        rows: names of rows from the top. The panel then lies on its side: values are along x, and
            `at` is the number of a row.
    """

    key: str
    title: str
    caption: str
    series: Sequence[Series]
    x: Axis = Axis("round", from_zero=True)
    y: Axis = Axis()
    levels: Sequence[Level] = ()
    rows: Sequence[str] = ()


class Chart(NamedTuple):
    """A picture: rows of panels side by side, and sentences to read below them."""

    rows: Sequence[Sequence[Panel]]
    notes: Sequence[str]


def curve(
    name: str,
    points: Iterable[tuple[float, float | None]],
    colour: str = GREY,
    dash: str = "-",
    width: float = 1.6,
    *,
    marked: bool = True,
) -> Series:
    """Return a line through points; a value that is missing, infinite or NaN is a gap.

    Up to 60 points are marked, to show where the evaluations are.
    """
    shown = [
        Point(at, value if value is not None and math.isfinite(value) else math.nan)
        for at, value in points
    ]
    marks = marked and len(shown) <= 60 and width > 1
    return Series(name, shown, colour, dash, width, marks)


def start_levels(losses: Iterable[float | None]) -> list[Level]:
    """Return a level for each finite loss of a starting point; equal ones are drawn once."""
    shown = {f"{loss:.6g}": loss for loss in losses if loss is not None and math.isfinite(loss)}
    return [Level(loss, f"start {decimal_text(loss, 2)}") for loss in shown.values()]


def in_rows(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Return the panels in rows of at most `COLUMNS`; four are two of two."""
    columns = math.ceil(len(panels) / math.ceil(len(panels) / COLUMNS))
    return [panels[at : at + columns] for at in range(0, len(panels), columns)]
