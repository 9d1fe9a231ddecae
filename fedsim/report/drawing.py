"""Draw charts with matplotlib: SVG for pages, with values as tooltips, and picture files.

This module does not use pyplot's global state. It never reads text as mathematics, because names
of runs are data; matplotlib escapes them in SVG.
"""

from __future__ import annotations

import html
import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from fedsim.report.figures import COLUMNS, Axis, Chart, Panel, Point, Series
from fedsim.report.style import INK, MUTED, RULE, shorten

Form = Literal["png", "svg", "pdf"]
FORMS: tuple[Form, ...] = ("png", "svg", "pdf")
WIDTH, PAGE_WIDTH = 8.0, 3.9  # widths of a picture and of a panel in a page, inches
MOST = 200  # maximum number of points of a curve in a page
DPI = 200  # resolution of a PNG
# Heights in inches: a row of panels, a line of the legend or of notes, a row in a panel.
PANEL, LEGEND_LINE, NOTE_LINE, ROW = 2.6, 0.2, 0.13, 0.36
_STYLE: dict[Any, Any] = {  # no mathematics in texts; reproducible SVG
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedsim",
}
_UNDATED: dict[Form, dict[str, None]] = {
    "png": {},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def draw(chart: Chart, form: Form = "png") -> bytes:
    """Return a picture of 8 inches width; its panels and notes determine its height."""
    with mpl.rc_context(_STYLE):
        figure, _ = _figure(chart, WIDTH)
        stream = io.BytesIO()
        figure.savefig(stream, format=form, dpi=DPI, metadata=_UNDATED[form])
    return stream.getvalue()


def pictures(name: str, chart: Chart) -> dict[str, bytes]:
    """Return a picture as PNG, SVG and PDF, by file name."""
    return {f"{name}.{form}": draw(chart, form) for form in FORMS}


def page_svg(panel: Panel) -> str:
    """Return a panel without its title as SVG, in the page's colours.

    Each point has a tooltip with its values. The SVG needs no script and no request.
    """
    series = [replace(one, points=_evenly(one.points)) for one in panel.series]
    panel = replace(panel, series=series)
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(Chart([[panel]], ()), PAGE_WIDTH, in_page=True)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True)
        tips = "".join(_tips(axes[0], panel, figure.bbox.height))
    svg = stream.getvalue()
    svg = svg[svg.index("<svg") :].replace("</svg>", f"{tips}</svg>")
    # Remove unused ids, which would repeat in a page with several figures.
    svg = re.sub(
        r"<metadata>.*?</metadata>| xmlns(:\w+)?=\"[^\"]*\"| id=\"[\w.]+_\d+\"", "", svg, flags=re.S
    )
    for colour, name in ((INK, "ink"), (MUTED, "muted"), (RULE, "rule")):
        svg = svg.replace(colour, f"var(--{name})")
    return svg


def _evenly(points: Sequence[Point]) -> Sequence[Point]:
    """Return at most `MOST` evenly spaced points, with the first and the last."""
    if len(points) <= MOST:
        return points
    return [points[number * (len(points) - 1) // (MOST - 1)] for number in range(MOST)]


def _tips(axes: Axes, panel: Panel, height: float) -> Iterator[str]:
    """Yield an invisible dot with a tooltip over each point inside the axes."""
    for series in panel.series:
        for point in series.points:
            at = (point.value, point.at) if panel.rows else (point.at, point.value)
            x, y = axes.transData.transform(at)
            if axes.bbox.padded(1).contains(x, y):
                tip = html.escape(_tip(series.name, point, panel))
                circle = f'<circle class="tip" cx="{x:.1f}" cy="{height - y:.1f}" r="4">'
                yield f"{circle}<title>{tip}</title></circle>"


def _tip(name: str, point: Point, panel: Panel) -> str:
    lines = [name, f"{panel.y.label or panel.title}: {point.value:.4g}"]
    if not panel.rows:
        lines.insert(1, f"{panel.x.label}: {point.at:.6g}")
    if math.isfinite(point.low) and math.isfinite(point.high) and not panel.rows:
        lines.append(f"interval: {point.low:.4g} to {point.high:.4g}")
    return "\n".join(lines)


def _figure(chart: Chart, width: float, *, in_page: bool = False) -> tuple[Figure, list[Axes]]:
    notes = [line for note in chart.notes for line in textwrap.wrap(note, 178)]
    legend, columns = _legend(chart), max(1, round(COLUMNS * width / WIDTH))
    heights = [max([PANEL, *(1.0 + ROW * len(panel.rows) for panel in row)]) for row in chart.rows]
    beside = LEGEND_LINE * math.ceil(len(legend) / columns) + NOTE_LINE * len(notes)
    size = (width, sum(heights) + beside)
    figure = Figure(figsize=size, dpi=72, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    if legend:
        _draw_legend(figure, legend, columns)
    if notes:
        note = "\n".join(notes)
        figure.supxlabel(note, x=0.0125, ha="left", fontsize=5.5, color=MUTED)
    places = figure.add_gridspec(len(heights), 6, height_ratios=heights)  # 1, 2 or 3 panels a row
    axes = []
    for number, row in enumerate(chart.rows):
        wide = 6 // len(row)
        for column, panel in enumerate(row):
            axes.append(figure.add_subplot(places[number, column * wide : (column + 1) * wide]))
            _draw_panel(axes[-1], panel, "" if in_page else panel.title)
    return figure, axes


def _legend(chart: Chart) -> list[Series]:
    """Return one series per name and colour, from panels with several series."""
    shown = [panel for row in chart.rows for panel in row if not panel.rows]
    series = [one for panel in shown if len(panel.series) > 1 for one in panel.series]
    return list({(one.name, one.colour): one for one in series}.values())


def _draw_legend(figure: Figure, legend: Sequence[Series], columns: int) -> None:
    # matplotlib omits names that begin with "_" from a legend.
    figure.legend(
        [Line2D([], [], color=one.colour, ls=one.dash, lw=one.width) for one in legend],
        [re.sub("^_", "\u200b_", shorten(one.name, 44)) for one in legend],
        loc="outside upper left",
        ncols=min(columns, len(legend)),
        fontsize=7,
        labelcolor=INK,
        frameon=False,
        borderaxespad=0.3,
    )


def _draw_panel(axes: Axes, panel: Panel, title: str) -> None:
    """Draw a panel; only the bottom line of its frame is visible."""
    axes.set_title(title, loc="left", fontsize=9.5, fontweight="bold", color=INK, pad=12)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.tick_params(colors=MUTED, labelsize=7, length=0, pad=4)
    axes.grid(axis="x" if panel.rows else "y", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel(panel.x.label, fontsize=6.5, color=MUTED, labelpad=2)
    axes.text(0, 1.02, panel.y.label, transform=axes.transAxes, fontsize=6.5, color=MUTED)
    for series in panel.series:
        (_draw_row if panel.rows else _draw_series)(axes, series)
    axes.margins(x=0.01, y=0.1)
    whole = all(float(point.at).is_integer() for one in panel.series for point in one.points)
    _scale(axes, panel.x, across=True, whole=whole and not panel.rows)
    for level in panel.levels:
        _draw_level(axes, level.value, level.text, upright=bool(panel.rows))
    if panel.rows:
        axes.set_ylim(max(len(panel.rows), 2) - 0.6, -0.8)
        axes.set_yticks([])
        over = axes.get_yaxis_transform()
        for number, name in enumerate(panel.rows):
            at = (0, number - 0.35)
            text = shorten(name, 60)
            drawn = axes.text(*at, text, transform=over, fontsize=7.5, color=INK, va="center")
            drawn.set_in_layout(False)  # a long name must not leave the axes without width
    else:
        _scale(axes, panel.y, across=False)


def _draw_series(axes: Axes, series: Series) -> None:
    if not series.points:
        return
    colour = series.colour
    ats, values, low, high = zip(*series.points, strict=True)
    axes.plot(ats, values, color=colour, linewidth=series.width, linestyle=series.dash)
    if series.band:
        axes.fill_between(ats, low, high, color=colour, alpha=0.16, linewidth=0)
    if series.marks:
        axes.vlines(ats, low, high, color=colour, linewidth=0.8)
        axes.plot(ats, values, "o", color=colour, markersize=3.5)


def _draw_row(axes: Axes, series: Series) -> None:
    for at, value, low, high in series.points:
        axes.hlines(at, low, high, color=series.colour, linewidth=2.0)
        axes.plot(value, at, "o", color=series.colour, markersize=4.5)


def _draw_level(axes: Axes, value: float, text: str, *, upright: bool) -> None:
    """Draw a dashed line with its name: right of a vertical line, above a horizontal line's end."""
    style: dict[str, Any] = {"color": MUTED, "fontsize": 6.5, "textcoords": "offset points"}
    style |= {"va": "center", "annotation_clip": False}
    line: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "linestyle": (0, (4, 3))}
    if upright:
        axes.axvline(value, **line)
        drawn = axes.annotate(text, (value, 0.97), (3, 0), axes.get_xaxis_transform(), **style)
    else:
        axes.axhline(value, **line)
        place = (0.99, value), (0, 6), axes.get_yaxis_transform()
        drawn = axes.annotate(text, *place, ha="right", **style)
    drawn.set_in_layout(False)


def _scale(axes: Axes, scale: Axis, *, across: bool, whole: bool = False) -> None:
    axis, limits = (axes.xaxis, axes.set_xlim) if across else (axes.yaxis, axes.set_ylim)
    if scale.log:
        (axes.set_xscale if across else axes.set_yscale)("log")
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:g}")  # matplotlib's is mathematics
    elif not scale.ticks:
        axis.set_major_locator(MaxNLocator(nbins=6, integer=whole, steps=[1, 2, 2.5, 5, 10]))
    if scale.ticks:
        axis.set_major_locator(FixedLocator(list(scale.ticks)))
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    if scale.limits is not None:
        limits(*scale.limits)
    elif scale.from_zero:
        limits(0.0)
