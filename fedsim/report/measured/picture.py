"""A measured grid as one PNG: loss over ε and over compute, or a dot for each line."""

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
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter, NullLocator

from fedsim.report.measured.lines import Measurement
from fedsim.report.measured.panels import (
    Chart,
    Panel,
    Series,
    charts,
    distinct,
    drawn,
    limits,
    trouble,
)
from fedsim.report.measured.tables import INTERVAL_NOTE, terms
from fedsim.report.pictures import DPI, TERMS_LINE, WIDTH, clean, write_on_level
from fedsim.report.style import INK, MUTED, RULE, colour, dash, shorten
from fedsim.report.wording import NOT_COVERED, decimal_text, epsilon_text


def draw_dots(axes: Axes, measurement: Measurement) -> None:
    """Draw one row a line, the first at the top: its interval, or what went wrong.

    Args:
        axes: with room for the names on its left.
        measurement: any.
    """
    clean(axes, "Held-out loss, nats a token")
    span = limits(measurement.lines)
    axes.grid(axis="x", color=RULE, linewidth=0.6)
    for row, line in enumerate(measurement.lines):
        hue = colour(row)
        promise = "" if line.epsilon is None else f", ε = {epsilon_text(line.epsilon)}"
        if line.hypothetical:
            promise += " (hypothetical)"
        axes.text(
            -0.02,
            row,
            f"{shorten(line.name, 34)}{promise}",
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            fontsize=7,
            color=INK,
            parse_math=False,
        )
        loss = drawn(line, span)
        if loss is not None:
            axes.hlines(row, loss.low, loss.high, color=hue, linewidth=1.6)
            axes.plot(loss.mean, row, "o", color=hue, markersize=4.5)
        if said := trouble(line, span):
            axes.plot(span[1], row, "x", color=hue, markersize=5, clip_on=False)
            axes.annotate(
                said,
                (span[1], row),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=6,
                color=hue,
                annotation_clip=False,
                parse_math=False,
            )
    for start in distinct(line.start for line in measurement.lines):
        axes.axvline(start, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        text = f" start {decimal_text(start, 2)}"
        axes.text(start, -0.55, text, fontsize=6.5, color=MUTED, va="bottom")
    axes.set_xlim(*span)
    axes.set_ylim(max(len(measurement.lines), 2) - 0.4, -0.7)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6))


COLUMNS = 3
ROW, TITLE, LEGEND_ROW, DOT_ROW = 2.35, 0.42, 0.2, 0.27  # inches
PANEL = ROW - TITLE - 0.45  # height of what is inside the axes
MARK_ROW = 0.11  # of a cross and what it says
LINE_STYLES: dict[str, Literal["-", "--", ":", "-."]] = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
}


def draw_measurement(measurement: Measurement) -> bytes:
    """Draw a row of panels over ε and one over budgets, or the losses alone if neither varies.

    What failed, diverged or lies far above the start is a cross at the upper edge that says so.

    Returns:
        A PNG, 1600 pixels wide, as high as its panels and lines of terms need.
    """
    found = charts(measurement)
    notes = _notes(measurement)
    rows = [row for chart in found for row in _rows(chart)]
    labels = found[0].labels if found else []
    legend = LEGEND_ROW * math.ceil(len(labels) / COLUMNS) + 0.06 if labels else 0.0
    plots = ROW * len(rows) if rows else TITLE + 0.5 + DOT_ROW * max(len(measurement.lines), 3)
    foot = 0.12 + TERMS_LINE * len(notes)
    height = legend + plots + foot
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    if labels:
        _draw_legend(figure, labels)
    for number, (chart, panels) in enumerate(rows):
        top = legend + ROW * number + TITLE
        for column, panel in enumerate(panels):
            width = (WIDTH - 0.2) / len(panels)
            box = _box(0.48 + width * column, top, width - 0.48, PANEL, height)
            _draw_panel(figure.add_axes(box), chart, panel, first=column == 0)
    if not rows:
        box = _box(2.6, TITLE, WIDTH - 3.4, plots - TITLE - 0.45, height)
        draw_dots(figure.add_axes(box), measurement)
    for number, line in enumerate(reversed(notes)):
        y = (0.09 + TERMS_LINE * number) / height
        figure.text(0.0125, y, line, fontsize=5.5, color=MUTED, parse_math=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _notes(measurement: Measurement) -> list[str]:
    sentences = [f"{text}." for text in terms(measurement)]
    sentences += [INTERVAL_NOTE, f"Loss: {NOT_COVERED}.", *measurement.notes]
    return [line for sentence in sentences for line in textwrap.wrap(sentence, 178)]


def _rows(chart: Chart) -> list[tuple[Chart, Sequence[Panel]]]:
    """Return its panels, those of a row together; rows of four are two of two."""
    count = len(chart.panels)
    columns = math.ceil(count / math.ceil(count / COLUMNS))
    return [(chart, chart.panels[at : at + columns]) for at in range(0, count, columns)]


def _box(
    left: float, top: float, width: float, height: float, of: float
) -> tuple[float, float, float, float]:
    """Return a box in shares of the figure; `top` is measured from above, `of` is all height."""
    return left / WIDTH, 1 - (top + height) / of, width / WIDTH, height / of


def _draw_legend(figure: Figure, labels: Sequence[str]) -> None:
    handles = [
        Line2D([], [], color=colour(i), linestyle=LINE_STYLES[dash(i)], marker="o", markersize=3.5)
        for i in range(len(labels))
    ]
    # A "$" or a leading "_" in a name is a name to us and a command to a legend.
    texts = [shorten(label, 44).replace("$", r"\$") for label in labels]
    figure.legend(
        handles,
        [f"\u200b{text}" if text.startswith("_") else text for text in texts],
        loc="upper left",
        ncols=min(COLUMNS, len(labels)),
        fontsize=7.5,
        labelcolor=INK,
        frameon=False,
        borderaxespad=0.3,
    )


def _draw_panel(axes: Axes, chart: Chart, panel: Panel, *, first: bool) -> None:
    clean(axes, panel.held or chart.title)
    if first:
        axes.text(
            0,
            1.02,
            "held-out loss, nats a token",
            transform=axes.transAxes,
            fontsize=6,
            color=MUTED,
        )
    axes.set_xscale("log")
    axes.set_xlabel(chart.axis_title, fontsize=6.5, color=MUTED, labelpad=2)
    axes.xaxis.set_major_locator(FixedLocator(list(chart.ticks)))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    for series in panel.series:
        _draw_series(axes, chart, series)
    for start in panel.starts:
        axes.axhline(start, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        write_on_level(axes, 0.99, start, f"start {decimal_text(start, 2)}", above=True)
    axes.set_xlim(*chart.reach)
    axes.set_ylim(chart.limits[0], chart.top(MARK_ROW / PANEL))
    _mark_troubles(axes, chart, panel)


def _draw_series(axes: Axes, chart: Chart, series: Series) -> None:
    curve = series.curve(chart.limits)
    if not curve:
        return
    hue, style = colour(series.index), LINE_STYLES[dash(series.index)]
    xs = list(chart.reach) if series.level else [spot.x for spot, _ in curve]
    losses = [loss for _, loss in curve] * (2 if series.level else 1)
    means = [loss.mean for loss in losses]
    low, high = [loss.low for loss in losses], [loss.high for loss in losses]
    axes.fill_between(xs, low, high, color=hue, alpha=0.16, linewidth=0)
    axes.plot(xs, means, color=hue, linewidth=1.6, linestyle=style)
    if not series.level:
        axes.vlines(xs, low, high, color=hue, linewidth=0.8)
        axes.plot(xs, means, "o", color=hue, markersize=3.5)


def _mark_troubles(axes: Axes, chart: Chart, panel: Panel) -> None:
    """Put a cross at the upper edge for each line in trouble, one below the other."""
    middle = math.sqrt(chart.reach[0] * chart.reach[1])
    for row, (series, spot, said) in enumerate(chart.troubles(panel)):
        y = 1 - MARK_ROW / PANEL * (row + 0.4)
        hue, left = colour(series.index), spot.x <= middle
        at = axes.get_xaxis_transform()
        axes.plot(spot.x, y, "x", color=hue, markersize=4, transform=at, clip_on=False)
        axes.annotate(
            f"{shorten(series.label, 20)}: {said}",
            (spot.x, y),
            xycoords=at,
            xytext=(5 if left else -5, 0),
            textcoords="offset points",
            ha="left" if left else "right",
            va="center",
            fontsize=6,
            color=hue,
            parse_math=False,
        )
