"""Panels as interactive plotly figures in plain data.

Colours of text and grid are left to the page, which follows the reader's light or dark theme.
Names are escaped: plotly reads a subset of HTML in its texts.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from fedsim.report.charts import Axis, Cross, Level, Panel, Series
from fedsim.report.style import GREY


class Plot(NamedTuple):
    """A titled figure: `figure` is plotly's JSON, `caption` stands below it."""

    key: str
    title: str
    caption: str
    figure: dict[str, Any]


def plots(panels: Iterable[Panel]) -> list[Plot]:
    """Return a plot for each panel."""
    return [Plot(panel.key, panel.title, panel.caption, _figure(panel)) for panel in panels]


def _figure(panel: Panel) -> dict[str, Any]:
    traces, annotations, shapes = [], [_unit(panel.y)], []
    for series in panel.series:
        if series.band:
            traces.append(_band(series))
        traces.append(_line(panel, series))
    traces.extend(_cross(panel, cross) for cross in panel.crosses)
    for level in panel.levels:
        shape, annotation = _level(panel, level)
        shapes.append(shape)
        annotations.append(annotation)
    layout = {**_layout(panel), "annotations": annotations, "shapes": shapes}
    return {"data": [{"type": "scatter", **trace} for trace in traces], "layout": layout}


def _unit(axis: Axis) -> dict[str, Any]:
    """Return the unit at the top of its axis, where it reads without turning one's head."""
    return {
        "text": axis.label, "x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left",
        "yanchor": "bottom", "xshift": -2, "yshift": 6, "showarrow": False,
    }  # fmt: skip


def _cross(panel: Panel, cross: Cross) -> dict[str, Any]:
    return {
        **_places(panel, [(cross.at, cross.value)]),
        "text": [_text(cross.text)],
        "hovertext": [_hover(cross.hover)],
        "hoverinfo": "text",
        "mode": "markers+text",
        "textposition": "middle left" if cross.on_left else "middle right",
        "textfont": {"color": cross.colour, "size": 11},
        "marker": {"symbol": "x-thin", "size": 8, "line": {"width": 2, "color": cross.colour}},
        "cliponaxis": False,
        "showlegend": False,
    }


def _level(panel: Panel, level: Level) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a dashed line across the panel, and its text."""
    # A panel of rows lies on its side: its values are along x.
    value, across, end = ("x", "y", "left") if panel.rows else ("y", "x", "right")
    shape = {
        "type": "line", f"{value}ref": value, f"{value}0": level.value, f"{value}1": level.value,
        f"{across}ref": f"{across} domain", f"{across}0": 0, f"{across}1": 1,
        "line": {"color": GREY, "width": 1, "dash": "dash"},
    }  # fmt: skip
    annotation = {
        "text": level.text, "font": {"size": 11}, "showarrow": False, "xanchor": end,
        "yanchor": "top" if panel.rows else "bottom", f"{value}ref": value, value: level.value,
        f"{across}ref": f"{across} domain", across: 1,
    }  # fmt: skip
    return shape, annotation


def _layout(panel: Panel) -> dict[str, Any]:
    axis = {
        "zeroline": False,
        "showline": False,
        "ticks": "",
        "automargin": True,
        "ticklabelstandoff": 5,
        "fixedrange": not panel.zoom,
    }
    title = {"text": panel.x.label, "standoff": 4, "font": {"size": 12}}
    across = {"showgrid": bool(panel.rows), "title": title, **_scale(panel.x)}
    up = {"nticks": 6, **_scale(panel.y)}
    if panel.rows:
        up = {
            "range": [len(panel.rows) - 0.5, -0.6],
            "tickvals": list(range(len(panel.rows))),
            "ticktext": list(map(_text, panel.rows)),
            "showgrid": False,
        }
    height = max(240, 90 + 30 * len(panel.rows)) if panel.rows else 340 if panel.zoom else 300
    return {
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 26, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12},
        "showlegend": panel.legend,
        "legend": {"orientation": "h", "x": 0, "y": -0.27, "yanchor": "top"},
        "hovermode": "closest" if panel.closest else "x unified",
        "hoverlabel": {"align": "left"},
        "xaxis": {**axis, **across},
        "yaxis": {**axis, **up},
    }


def _scale(axis: Axis) -> dict[str, Any]:
    scale: dict[str, Any] = {"type": "log"} if axis.log else {}
    if axis.from_zero:
        scale["rangemode"] = "tozero"
    if axis.limits is not None:
        scale["range"] = [math.log10(end) if axis.log else end for end in axis.limits]
    if axis.ticks:
        scale["tickvals"] = list(axis.ticks)
        scale["ticktext"] = [f"{tick:g}" for tick in axis.ticks]
    return scale


def _line(panel: Panel, series: Series) -> dict[str, Any]:
    mode = "markers" if panel.rows else "lines+markers" if series.marks else "lines"
    line = {
        **_places(panel, [(point.at, point.value) for point in series.points]),
        **_said(panel, series),
        "mode": mode,
        "line": {"color": series.colour, "width": series.width, "dash": series.dash},
        "marker": {"size": 9 if panel.rows else 7 if series.band else 5, "color": series.colour},
    }
    if series.marks and all(point.has_interval for point in series.points):
        line["error_x" if panel.rows else "error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, point.high - point.value) for point in series.points],
            "arrayminus": [max(0.0, point.value - point.low) for point in series.points],
            "width": 0,
            "thickness": 1,
        }
    return line


def _said(panel: Panel, series: Series) -> dict[str, Any]:
    """Return the name, and what a pointer shows."""
    name = _text(series.name)
    said = {"name": name, **({"legendgroup": name} if series.band else {})}
    if any(point.hover for point in series.points):
        return {**said, "text": [_hover(p.hover) for p in series.points], "hoverinfo": "text"}
    if panel.closest:
        return {**said, "hovertemplate": "(%{x:.4~g}, %{y:.4~g})"}
    if any(point.has_interval for point in series.points):
        return said
    return {**said, "hovertemplate": "%{y:.4~g}"}


def _band(series: Series) -> dict[str, Any]:
    there, back = series.points, series.points[::-1]
    name = _text(series.name)
    return {
        "x": [point.at for point in (*there, *back)],
        "y": _numbers([*(point.high for point in there), *(point.low for point in back)]),
        "text": [_hover(point.hover) for point in (*there, *back)],
        "name": name,
        "legendgroup": name,
        "hoverinfo": "text",
        "fill": "toself",
        "fillcolor": f"{series.colour}2b",  # an alpha of a sixth
        "line": {"width": 0},
        "mode": "lines",
        "hoveron": "points",
        "showlegend": False,
    }


def _places(panel: Panel, pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    ats, values = _numbers([at for at, _ in pairs]), _numbers([value for _, value in pairs])
    return {"x": values, "y": ats} if panel.rows else {"x": ats, "y": values}


def _numbers(values: Sequence[float]) -> list[float | None]:
    """Return numbers as JSON has them: NaN and infinity are gaps."""
    return [value if math.isfinite(value) else None for value in values]


def _hover(lines: Sequence[str]) -> str:
    """Return lines as plotly shows them, the first bold."""
    first, *others = map(_text, lines)
    return "<br>".join([f"<b>{first}</b>", *others])


def _text(text: str) -> str:
    return html.escape(text, quote=False)
