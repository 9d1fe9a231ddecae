"""Figures as plain values: panels with series and levels. `drawing.py` draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fedsim.report.style import GREY
from fedsim.report.wording import decimal_text

COLUMNS = 3  # maximum number of panels in a row


class Point(NamedTuple):
    """A value at position `at`, with its interval [`low`, `high`]; NaN is a gap in a line."""

    at: float
    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Series:
    """A named series of points.

    Attributes:
        name: name in the legend.
        points: points from left to right.
        colour: colour as "#rrggbb".
        dash: matplotlib's line style.
        width: line width in points.
        marks: draw each point as a dot, with its interval as a bar.
        band: also draw the intervals as a band.
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
    """An axis. Without `limits` the data determine them; `from_zero` starts it at zero."""

    label: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] = ()
    from_zero: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot. More than one series gives it a legend.

    Attributes:
        key: id in the page, of letters, digits and hyphens.
        title: text above the panel.
        caption: text below the panel.
        series: series in drawing order.
        x: axis of the points' positions.
        y: axis of the values.
        levels: dashed lines, such as the loss of the starting model.
        rows: names of rows from the top. With rows, values are along x, and `at` is the row number.
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
    """Return a line through points; a missing, infinite or NaN value is a gap.

    Lines of up to 60 points get dots, which show the evaluations.
    """
    shown = [
        Point(at, value if value is not None and math.isfinite(value) else math.nan)
        for at, value in points
    ]
    marks = marked and len(shown) <= 60 and width > 1
    return Series(name, shown, colour, dash, width, marks)


def start_levels(losses: Iterable[float | None]) -> list[Level]:
    """Return one level per distinct finite loss of a starting model."""
    shown = {f"{loss:.6g}": loss for loss in losses if loss is not None and math.isfinite(loss)}
    return [Level(loss, f"start {decimal_text(loss, 2)}") for loss in shown.values()]


def in_rows(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Return the panels in balanced rows of at most `COLUMNS`; four panels give two rows of two."""
    columns = math.ceil(len(panels) / math.ceil(len(panels) / COLUMNS))
    return [panels[at : at + columns] for at in range(0, len(panels), columns)]
