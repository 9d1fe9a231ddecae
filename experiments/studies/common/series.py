"""Figures of a grid's losses: panels, colours and axes by setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsim.experiments.studies.common.output import clean, legend, new_figure
from fedsim.report.grid_result import INTERVAL_NOTE, CellResult, GridResult
from fedsim.report.style import MUTED, colour


def distinct(lines: Sequence[CellResult], key: str) -> list[str]:
    """Return the distinct values of a setting, in order of appearance; "source" also works."""
    return list(dict.fromkeys(value_of(line, key) for line in lines))


def value_of(line: CellResult, key: str) -> str:
    """Return a setting as text, or "" if a line does not have it."""
    return line.source if key == "source" else line.settings.get(key, "")


def pick(lines: Sequence[CellResult], **settings: str) -> list[CellResult]:
    """Return the lines with these settings."""
    return [
        line
        for line in lines
        if all(value_of(line, key) == value for key, value in settings.items())
    ]


def draw(
    measurement: GridResult,
    *,
    x: str,
    series: str,
    panels: str,
    title: str,
    marks: dict[str, float] | None = None,
) -> Figure:
    """Draw held-out loss against a setting.

    Args:
        measurement: the grid's losses.
        x: setting of the x axis; values that are not numbers are evenly spaced.
        series: setting shown by colour.
        panels: setting with one panel per value.
        title: title of the picture.
        marks: map from label to position of vertical lines.

    A cross at the upper edge marks a line with a run that diverged, failed or ended early.
    """
    count = len(distinct(measurement.lines, panels))
    figure = new_figure(1.6 + 2.9 * count, 3.4, title, _note(measurement))
    axes = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    _row(axes, measurement.lines, x, series=series, panels=panels)
    for panel in axes:
        for label, position in (marks or {}).items():
            panel.axvline(position, color=MUTED, linewidth=0.8, linestyle=":", label=label)
    legend(figure, axes[0])
    return figure


def picture(x: str, series: str, panels: str, title: str) -> Callable[[GridResult], Figure]:
    """Return the function `draw` with these settings."""
    return lambda measurement: draw(measurement, x=x, series=series, panels=panels, title=title)


def draw_rows(
    measurement: GridResult, *, series: str, rows: Sequence[tuple[str, str]], title: str
) -> Figure:
    """Draw several rows of panels, each with its own setting for axis and panels."""
    counts = [len(distinct(measurement.lines, panels)) for _, panels in rows]
    figure = new_figure(1.6 + 2.4 * max(counts), 1.0 + 2.5 * len(rows), title, _note(measurement))
    axes = figure.subplots(len(rows), max(counts), squeeze=False, sharey=True)
    for (x, panels), count, row in zip(rows, counts, axes, strict=True):
        _row(row[:count], measurement.lines, x, series=series, panels=panels)
        for unused in row[count:]:
            unused.set_visible(False)
    legend(figure, axes[0][0])
    return figure


def _row(
    axes: Sequence[Axes], lines: Sequence[CellResult], x: str, *, series: str, panels: str
) -> None:
    loss = "held-out loss, nats a token"
    for panel, name in zip(axes, distinct(lines, panels), strict=True):
        title = name if panels == "source" else f"{panels} = {name}" if name else ""
        clean(panel, title, x=x, y=loss if panel is axes[0] else "")
        positions = _positions(panel, distinct(lines, x))
        for index, value in enumerate(distinct(lines, series)):
            chosen = pick(lines, **{panels: name, series: value})
            label = value if series == "source" else f"{series} = {value}"
            _series(panel, {positions[value_of(line, x)]: line for line in chosen}, label, index)
        starts = [line.start for line in lines if line.start is not None]
        if starts:
            panel.axhline(max(starts), color=MUTED, lw=0.8, ls="--", label="starting point")


def _note(measurement: GridResult) -> str:
    terms = [line.terms for line in measurement.lines if line.epsilon is not None]
    named = "; or ".join(dict.fromkeys(terms or ["No guarantee"]))
    return f"{named}. {INTERVAL_NOTE} ✕: a seed diverged, failed or ended early."


def _positions(axes: Axes, values: Sequence[str]) -> dict[str, float]:
    """Return positions on the axis: the numbers themselves, or even spacing for words."""
    try:
        positions = {value: float(value) for value in values}
    except ValueError:
        axes.set_xticks(range(len(values)), values, rotation=20, ha="right")
        return {value: float(number) for number, value in enumerate(values)}
    if min(positions.values()) > 0.0:
        axes.set_xscale("log", base=2)
    axes.set_xticks(list(positions.values()), values)
    axes.minorticks_off()
    return positions


def _series(axes: Axes, lines: Mapping[float, CellResult], label: str, index: int) -> None:
    good = {at: line.loss for at, line in sorted(lines.items()) if line.loss is not None}
    losses = list(good.values())
    axes.errorbar(
        list(good),
        [loss.mean for loss in losses],
        yerr=[
            [loss.mean - loss.low for loss in losses],
            [loss.high - loss.mean for loss in losses],
        ],
        fmt="o-",
        color=colour(index),
        ms=3.5,
        lw=1.4,
        capsize=2,
        label=label,
    )
    for at, line in lines.items():
        if line.loss is None or line.num_diverged or line.failures or line.stopped:
            upper = axes.get_xaxis_transform()
            axes.plot(at, 0.97, "x", color=colour(index), transform=upper)
