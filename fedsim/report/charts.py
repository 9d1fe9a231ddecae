"""Figures as plain values: panels with series, levels and crosses, for any backend to draw.

`pictures.py` makes one PNG of a chart, `plots.py` an interactive figure of each panel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedsim.report.schema import TradeOffBound
from fedsim.report.style import GREY
from fedsim.report.wording import NOT_COVERED, decimal_text

UNCOVERED = f"{NOT_COVERED[0].upper()}{NOT_COVERED[1:]}."
COLUMNS = 3  # of panels in a picture


class Point(NamedTuple):
    """A value at its place; NaN is a gap in a line.

    `low` and `high` are the ends of its interval, `hover` the lines that stand beside a pointer.
    """

    at: float
    value: float
    low: float = math.nan
    high: float = math.nan
    hover: tuple[str, ...] = ()

    @property
    def has_interval(self) -> bool:
        """Whether both ends are known."""
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True)
class Series:
    """Points that belong together.

    Attributes:
        name: of the legend.
        points: from left to right.
        colour: as "#rrggbb".
        dash: "solid", "dash", "dot" or "dashdot".
        width: in pixels.
        marks: whether each point is a dot.
        band: whether the intervals are a band, too.
    """

    name: str
    points: Sequence[Point]
    colour: str = GREY
    dash: str = "solid"
    width: float = 2.5
    marks: bool = False
    band: bool = False


class Level(NamedTuple):
    """A dashed line right across the panel, at a value."""

    value: float
    text: str


class Cross(NamedTuple):
    """What could not be drawn: a cross with a text on its left, or else its right."""

    at: float
    value: float
    text: str
    colour: str
    on_left: bool
    hover: tuple[str, ...] = ()


@dataclass(frozen=True)
class Axis:
    """An axis; without limits they follow from what is drawn.

    Attributes:
        label: what is on it, with the unit.
        log: whether it is logarithmic.
        limits: its ends.
        ticks: where numbers stand; chosen by the backend if there are none.
        from_zero: whether it begins at zero.
    """

    label: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    ticks: Sequence[float] = ()
    from_zero: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot.

    Attributes:
        key: a name for the page, of letters, digits and hyphens.
        title: above it.
        caption: below it.
        series: drawn in this order.
        x: along which points have their place.
        y: of the values.
        levels: such as the starting point.
        crosses: what failed, diverged or lies outside.
        legend: whether names of series are shown.
        rows: names of rows from the top. The panel then lies on its side: values are along x, and
            `at` is the number of a row.
        closest: whether a pointer finds single points, not all values above one place.
        zoom: whether dragging zooms.
    """

    key: str
    title: str
    caption: str
    series: Sequence[Series]
    x: Axis = Axis("round", from_zero=True)
    y: Axis = Axis()
    levels: Sequence[Level] = ()
    crosses: Sequence[Cross] = ()
    legend: bool = False
    rows: Sequence[str] = ()
    closest: bool = False
    zoom: bool = False


@dataclass(frozen=True)
class Chart:
    """Panels in rows, with what has to be read below them.

    Attributes:
        rows: panels side by side.
        notes: sentences.
        least_height: in inches; more panels or notes take more.
    """

    rows: Sequence[Sequence[Panel]]
    notes: Sequence[str]
    least_height: float = 0.0


def curve(
    name: str,
    points: Iterable[tuple[float, float | None]],
    colour: str = GREY,
    *,
    dash: str = "solid",
    width: float = 2.5,
) -> Series:
    """Return a line through points; a value that is infinite or NaN is a gap.

    Few points are marked, to show where the evaluations are.
    """
    found = [
        Point(at, value if value is not None and math.isfinite(value) else math.nan)
        for at, value in points
    ]
    return Series(name, found, colour, dash, width, marks=len(found) <= 60 and width > 2)


def epsilon_panel(caption: str, series: Sequence[Series], *, legend: bool = False) -> Panel:
    """Return a panel of ε over rounds; the caption says what each ε is an ε of."""
    up = Axis("ε", from_zero=True)
    return Panel("epsilon", "Privacy loss ε spent", caption, series, y=up, legend=legend)


def trade_off_panel(caption: str, bounds: Iterable[tuple[str, TradeOffBound, str, str]]) -> Panel:
    """Return the bound on every attacker's ROC, a curve for each (name, bound, colour, dash)."""
    series = [
        curve(
            name,
            zip(bound.false_positive_rates, bound.true_positive_rates, strict=True),
            hue,
            dash=style,
        )
        for name, bound, hue, style in bounds
    ]
    guessing = curve("guessing", [(0.0, 0.0), (1.0, 1.0)], width=1)
    return Panel(
        "trade-off",
        "What an attacker can make of it",
        f"At most so many of the users in the data are found. {caption}",
        [*(replace(one, marks=False) for one in series), guessing],
        x=Axis("false positive rate", limits=(0.0, 1.0)),
        y=Axis("true positive rate", limits=(0.0, 1.01)),
        legend=len(series) > 1,
        closest=True,
    )


def start_levels(losses: Iterable[float | None]) -> list[Level]:
    """Return a level for each finite loss of a starting point."""
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    return [Level(loss, f"start {decimal_text(loss, 2)}") for loss in finite]


def in_rows(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Return the panels in rows of at most `COLUMNS`; four are two of two."""
    columns = math.ceil(len(panels) / math.ceil(len(panels) / COLUMNS))
    return [panels[at : at + columns] for at in range(0, len(panels), columns)]
