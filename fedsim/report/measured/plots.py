"""The interactive plots of a measured grid: each point and band says its numbers, and zooms."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from fedsim.report.measured.lines import Interval, Line, Measurement
from fedsim.report.measured.panels import (
    Chart,
    Panel,
    Series,
    Spot,
    charts,
    distinct,
    drawn,
    limits,
    trouble,
)
from fedsim.report.plots import GREY, Plot, add_start, base_figure, plain_data
from fedsim.report.style import colour, dash, shorten
from fedsim.report.wording import NOT_COVERED, decimal_text, epsilon_text

UNCOVERED = f"Loss: {NOT_COVERED}."
MARK_ROW = 0.06  # of the height, for a cross and what it says
LEVEL_POINTS = 33  # of a level's band, so that a pointer finds one anywhere


class PlotGroup(NamedTuple):
    """The plots of one chart; `axis` is what its losses are drawn against."""

    title: str
    axis: str
    plots: list[Plot]


def measurement_plots(measurement: Measurement) -> list[PlotGroup]:
    """Return plots over ε and over budgets, of those that vary, else a dot for each line."""
    groups = [
        PlotGroup(
            chart.title,
            chart.axis_title,
            [
                Plot(f"{chart.axis}-{number}", panel.held or chart.title, _caption(panel), figure)
                for number, panel in enumerate(chart.panels)
                for figure in [plain_data(_panel(chart, panel))]
            ],
        )
        for chart in charts(measurement)
    ]
    if groups:
        return groups
    caption = _terms(measurement.lines)
    plot = Plot("lines", "Held-out loss", caption, plain_data(_dots(measurement)))
    return [PlotGroup("Loss", "lines", [plot])]


def _caption(panel: Panel) -> str:
    return _terms(spot.line for series in panel.series for spot in series.spots)


def _terms(lines: Iterable[Line]) -> str:
    said = dict.fromkeys(f"{line.source}: {line.terms}." for line in lines if line.terms)
    return " ".join([*said, UNCOVERED])


def hover_text(line: Line) -> str:
    """Return all that a point stands for: the loss, and its ε with its terms."""
    parts = [f"<b>{html.escape(shorten(line.name, 70))}</b>"]
    if line.loss is not None:
        parts.append(f"held-out loss {line.loss.mean:.4f}")
        if len(line.losses) - line.num_diverged > 1:
            parts.append(f"95 % interval {line.loss.low:.4f} to {line.loss.high:.4f}")
    parts.append(f"{len(line.losses)} seeds, {line.num_diverged} diverged")
    parts += [html.escape(shorten(f"failed: {reason}", 90)) for reason in line.failures]
    if line.budget is not None:
        parts.append(f"{line.budget:,.1f} expected gradients a round")
    if line.epsilon is not None:
        parts.append(f"ε = {epsilon_text(line.epsilon)}")
    parts += [html.escape(part.strip()) for part in line.terms.split(";") if part.strip()]
    return "<br>".join(parts)


def _zoomable(unit: str, height: int) -> Any:  # noqa: ANN401  (plotly has no types)
    figure = base_figure(unit)
    figure.update_layout(height=height, hovermode="closest", hoverlabel={"align": "left"})
    figure.update_xaxes(fixedrange=False, rangemode="normal")
    figure.update_yaxes(fixedrange=False)
    return figure


def _panel(chart: Chart, panel: Panel) -> Any:  # noqa: ANN401
    figure = _zoomable("held-out loss, nats a token", 340)
    low, top = chart.limits[0], chart.top(MARK_ROW)
    figure.update_layout(showlegend=True)
    figure.update_xaxes(
        type="log",
        range=[math.log10(end) for end in chart.reach],
        tickvals=list(chart.ticks),
        ticktext=[f"{tick:g}" for tick in chart.ticks],
        title={"text": chart.axis_title},
    )
    figure.update_yaxes(range=[low, top])
    for series in panel.series:
        _add_series(figure, chart, series)
    for row, (series, spot, said) in enumerate(chart.troubles(panel)):
        y = top - (top - low) * MARK_ROW * (row + 0.5)
        text = f"{shorten(series.label, 24)}: {said}"
        left = spot.x <= math.sqrt(chart.reach[0] * chart.reach[1])
        side = "right" if left else "left"
        _add_cross(figure, (spot.x, y), series.index, spot.line, said=text, side=side)
    for start in panel.starts:
        add_start(figure, start, decimal_text(start, 2))
    return figure


def _add_series(figure: Any, chart: Chart, series: Series) -> None:  # noqa: ANN401
    points = _spread_out(series.curve(chart.limits), chart, level=series.level)
    if not points:
        return
    name, hue = html.escape(shorten(series.label, 44)), colour(series.index)
    back = points[::-1]
    texts = [hover_text(spot.line) for spot, _ in points]
    shared = {"name": name, "legendgroup": name, "hoverinfo": "text"}
    figure.add_scatter(
        x=[spot.x for spot, _ in points + back],
        y=[loss.high for _, loss in points] + [loss.low for _, loss in back],
        text=texts + texts[::-1],
        fill="toself",
        fillcolor=f"{hue}2b",  # an alpha of a sixth
        line={"width": 0},
        mode="lines",
        hoveron="points",
        showlegend=False,
        **shared,
    )
    losses = [loss for _, loss in points]
    bars = {
        "type": "data",
        "symmetric": False,
        "array": [loss.high - loss.mean for loss in losses],
        "arrayminus": [loss.mean - loss.low for loss in losses],
        "width": 0,
        "thickness": 1,
    }
    figure.add_scatter(
        x=[spot.x for spot, _ in points],
        y=[loss.mean for loss in losses],
        text=texts,
        mode="lines" if series.level else "lines+markers",
        line={"color": hue, "width": 2.5, "dash": dash(series.index)},
        marker={"size": 7},
        error_y=None if series.level else bars,
        **shared,
    )


def _spread_out(
    curve: list[tuple[Spot, Interval]], chart: Chart, *, level: bool
) -> list[tuple[Spot, Interval]]:
    """Return a curve as it is, a level at many places from end to end."""
    if not level or not curve:
        return curve
    (spot, loss), (low, high) = curve[0], chart.reach
    shares = [number / (LEVEL_POINTS - 1) for number in range(LEVEL_POINTS)]
    return [(Spot(low * (high / low) ** share, spot.line), loss) for share in shares]


def _add_cross(
    figure: Any,  # noqa: ANN401
    at: tuple[float, float],
    index: int,
    line: Line,
    *,
    said: str,
    side: str,
) -> None:
    figure.add_scatter(
        x=[at[0]],
        y=[at[1]],
        text=[html.escape(said)],
        hovertext=[hover_text(line)],
        hoverinfo="text",
        mode="markers+text",
        textposition=f"middle {side}",
        textfont={"color": colour(index), "size": 11},
        marker={"symbol": "x-thin", "size": 8, "line": {"width": 2, "color": colour(index)}},
        cliponaxis=False,
        showlegend=False,
    )


def _dots(measurement: Measurement) -> Any:  # noqa: ANN401
    lines = measurement.lines
    span = limits(lines)
    figure = _zoomable("", max(240, 90 + 30 * len(lines)))
    for row, line in enumerate(lines):
        loss = drawn(line, span)
        if loss is not None:
            figure.add_scatter(
                x=[loss.mean],
                y=[row],
                name=html.escape(shorten(line.name, 44)),
                text=[hover_text(line)],
                hoverinfo="text",
                mode="markers",
                marker={"size": 9, "color": colour(row)},
                error_x={
                    "type": "data",
                    "symmetric": False,
                    "array": [loss.high - loss.mean],
                    "arrayminus": [loss.mean - loss.low],
                    "width": 0,
                },
            )
        if said := trouble(line, span):
            _add_cross(figure, (span[1], row), row, line, said=said, side="left")
    for start in distinct(line.start for line in lines):
        text = {"text": f"start {decimal_text(start, 2)}", "font": {"size": 11}}
        shape = {"color": GREY, "width": 1, "dash": "dash"}
        figure.add_vline(x=start, line=shape, annotation=text, annotation_position="top right")
    figure.update_xaxes(
        range=list(span), title={"text": "held-out loss, nats a token"}, showgrid=True
    )
    figure.update_yaxes(
        range=[len(lines) - 0.5, -0.6],
        tickvals=list(range(len(lines))),
        ticktext=[html.escape(shorten(line.name, 40)) for line in lines],
        showgrid=False,
    )
    return figure
