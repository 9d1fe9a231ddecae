"""A chart as one PNG for a page or a slide, drawn without pyplot's global state."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Transform

from fedsim.report.charts import COLUMNS, Axis, Chart, Panel, Series
from fedsim.report.style import INK, MUTED, RULE, shorten

WIDTH, DPI = 8.0, 200  # inches and dots an inch: 1600 pixels
# Inches: of a row of panels, above and below its axes, of lines of text, of a row in a panel.
PANEL, TITLE, FOOT = 2.35, 0.42, 0.45
LEGEND_LINE, NOTE_LINE, ROW = 0.2, 0.13, 0.36
LEFT = 0.48  # for the numbers of an axis
DASHED = (0, (4, 3))
STYLES: dict[str, Literal["-", "--", ":", "-."]] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
}


def draw(chart: Chart) -> bytes:
    """Return a PNG, 1600 pixels wide, as high as its panels and lines of notes need."""
    notes = [line for note in chart.notes for line in textwrap.wrap(note, 178)]
    legend = _legend(chart)
    head = LEGEND_LINE * math.ceil(len(legend) / COLUMNS) + 0.06 if legend else 0.0
    heights = [max(PANEL, *(TITLE + FOOT + ROW * len(p.rows) for p in row)) for row in chart.rows]
    foot = 0.12 + NOTE_LINE * len(notes)
    height = max(chart.least_height, head + sum(heights) + foot)
    room = (height - head - sum(heights) - foot) / len(heights)
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    if legend:
        _draw_legend(figure, legend)
    bottom = height - head
    for row, asked in zip(chart.rows, heights, strict=True):
        bottom -= asked + room
        width = (WIDTH - 0.2) / len(row)
        for column, panel in enumerate(row):
            left, inside = LEFT + width * column, asked + room - TITLE - FOOT
            box = (left / WIDTH, (bottom + FOOT) / height, (width - LEFT) / WIDTH, inside / height)
            _draw_panel(figure.add_axes(box), panel)
    for number, note in enumerate(reversed(notes)):
        y = (0.09 + NOTE_LINE * number) / height
        figure.text(0.0125, y, note, fontsize=5.5, color=MUTED, parse_math=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _legend(chart: Chart) -> list[Series]:
    """Return a series for each name and colour."""
    series = [one for row in chart.rows for p in row if p.legend for one in p.series]
    return list({(one.name, one.colour): one for one in series}.values())


def _draw_legend(figure: Figure, legend: Sequence[Series]) -> None:
    handles = [
        Line2D([], [], color=one.colour, linestyle=STYLES[one.dash], linewidth=0.65 * one.width)
        for one in legend
    ]
    # A "$" or a leading "_" in a name is a name to us and a command to a legend.
    texts = [shorten(one.name, 44).replace("$", r"\$") for one in legend]
    figure.legend(
        handles,
        [f"\u200b{text}" if text.startswith("_") else text for text in texts],
        loc="upper left",
        ncols=min(COLUMNS, len(legend)),
        fontsize=7.5,
        labelcolor=INK,
        frameon=False,
        borderaxespad=0.3,
    )


def _draw_panel(axes: Axes, panel: Panel) -> None:
    """Draw everything of a panel; of its frame only the bottom is seen."""
    axes.set_title(panel.title, loc="left", fontsize=9.5, fontweight="bold", color=INK, pad=12)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.tick_params(colors=MUTED, labelsize=7, length=0, pad=4)
    axes.grid(axis="x" if panel.rows else "y", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(panel.x.label, fontsize=6.5, color=MUTED, labelpad=2)
    axes.text(0, 1.02, panel.y.label, transform=axes.transAxes, fontsize=6, color=MUTED)
    for series in (one for one in panel.series if one.points):
        (_draw_row if panel.rows else _draw_series)(axes, series)
    for level in panel.levels:
        _draw_level(axes, level.value, level.text, upright=bool(panel.rows))
    for cross in panel.crosses:
        at = (cross.value, cross.at) if panel.rows else (cross.at, cross.value)
        axes.plot(*at, "x", color=cross.colour, markersize=4, clip_on=False)
        side: Literal["left", "right"] = "right" if cross.on_left else "left"
        room = -5 if cross.on_left else 5
        _write(axes, cross.text, at, "data", side, size=6, colour=cross.colour, offset=(room, 0))
    axes.margins(x=0.01, y=0.1)
    whole = all(float(p.at).is_integer() for one in panel.series for p in one.points)
    _scale(axes, panel.x, across=True, whole=whole and not panel.rows)
    if panel.rows:
        axes.set_ylim(max(len(panel.rows), 2) - 0.6, -0.8)
        axes.set_yticks([])
        for number, name in enumerate(panel.rows):
            at = (0, number - 0.35)
            _write(axes, shorten(name, 60), at, axes.get_yaxis_transform(), size=7.5, colour=INK)
    else:
        _scale(axes, panel.y, across=False, whole=False)


def _draw_series(axes: Axes, series: Series) -> None:
    hue, style = series.colour, STYLES[series.dash]
    ats, values, low, high, _ = zip(*series.points, strict=True)
    axes.plot(ats, values, color=hue, linewidth=0.65 * series.width, linestyle=style)
    if series.band:
        axes.fill_between(ats, low, high, color=hue, alpha=0.16, linewidth=0)
    if series.marks:
        axes.vlines(ats, low, high, color=hue, linewidth=0.8)
        axes.plot(ats, values, "o", color=hue, markersize=3.5)


def _draw_row(axes: Axes, series: Series) -> None:
    for at, value, low, high, _ in series.points:
        axes.hlines(at, low, high, color=series.colour, linewidth=2.0)
        axes.plot(value, at, "o", color=series.colour, markersize=4.5)


def _draw_level(axes: Axes, value: float, text: str, *, upright: bool) -> None:
    """Draw a dashed line with its name: right of an upright one, above the end of another."""
    rule = axes.axvline if upright else axes.axhline
    rule(value, color=MUTED, linewidth=0.9, linestyle=DASHED)
    if upright:
        over = axes.get_xaxis_transform()
        _write(axes, text, (value, 0.97), over, size=6.5, colour=MUTED, offset=(3, 0))
    else:
        along = axes.get_yaxis_transform()
        _write(axes, text, (0.99, value), along, "right", size=6.5, colour=MUTED, offset=(0, 6))


def _write(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    place: Literal["data"] | Transform,
    side: Literal["left", "right"] = "left",
    *,
    size: float,
    colour: str,
    offset: tuple[float, float] = (0, 0),
) -> None:
    """Write a text as it is, half its height above and below `at`; `offset` is in points."""
    axes.annotate(
        text,
        at,
        xycoords=place,
        xytext=offset,
        textcoords="offset points",
        ha=side,
        va="center",
        fontsize=size,
        color=colour,
        annotation_clip=False,
        parse_math=False,
    )


def _scale(axes: Axes, scale: Axis, *, across: bool, whole: bool) -> None:
    axis = axes.xaxis if across else axes.yaxis
    if scale.log:
        (axes.set_xscale if across else axes.set_yscale)("log")
        axis.set_minor_locator(NullLocator())
    elif not scale.ticks:
        steps = [1, 2, 2.5, 5, 10]
        axis.set_major_locator(MaxNLocator(nbins=6, integer=whole, steps=steps))
    if scale.ticks:
        axis.set_major_locator(FixedLocator(list(scale.ticks)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    if scale.limits is not None:
        (axes.set_xlim if across else axes.set_ylim)(*scale.limits)
