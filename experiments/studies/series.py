"""Losses of a measured grid as lines with intervals: a panel, a colour and an axis by setting."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.studies.output import clean, new_figure
from fedsim.report.measurement import Line, Measurement
from fedsim.report.style import INK, MUTED, colour


def distinct(lines: Sequence[Line], key: str) -> list[str]:
    """Return the values that a setting takes, in order of appearance; "source" is one too."""
    return list(dict.fromkeys(value_of(line, key) for line in lines))


def value_of(line: Line, key: str) -> str:
    """Return a setting as text; "" where a line does not have it."""
    return line.source if key == "source" else line.settings.get(key, "")


def pick(lines: Sequence[Line], **settings: str) -> list[Line]:
    """Return the lines with these settings."""
    return [
        line
        for line in lines
        if all(value_of(line, key) == value for key, value in settings.items())
    ]


def means(lines: Sequence[Line]) -> list[float]:
    """Return the mean losses; infinity where a line has none."""
    return [float("inf") if line.loss is None else line.loss.mean for line in lines]


def draw(
    measurement: Measurement,
    *,
    x: str,
    series: str,
    panels: str,
    title: str,
    log: bool = True,
    marks: dict[str, float] | None = None,
) -> Figure:
    """Draw held-out loss against a setting.

    Args:
        measurement: what was found.
        x: the setting of the axis; its values must be numbers.
        series: the setting that a colour stands for.
        panels: the setting that a panel stands for.
        title: of the picture.
        log: logarithmic axis, base 2.
        marks: label to position of vertical lines.

    A line without a finite loss is a cross at the upper edge.
    """
    lines = measurement.lines
    wanted = distinct(lines, panels)
    terms = next((line.terms for line in lines if line.epsilon is not None), "no guarantee")
    figure = new_figure(1.6 + 2.9 * len(wanted), 3.4, title, f"{terms}. Bars: 95 % over seeds.")
    axes = figure.subplots(1, len(wanted), squeeze=False, sharey=True)[0]
    for panel, name in zip(axes, wanted, strict=True):
        clean(panel, f"{panels} = {name}" if name else "")
        if log:
            panel.set_xscale("log", base=2)
        for index, value in enumerate(distinct(lines, series)):
            _series(panel, pick(lines, **{panels: name, series: value}), x, value, index)
        for label, position in (marks or {}).items():
            panel.axvline(position, color=MUTED, linewidth=0.8, linestyle=":", label=label)
        panel.set_xlabel(x, fontsize=8, color=INK)
    axes[0].set_ylabel("held-out loss, nats a token", fontsize=8, color=INK)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    return figure


def _series(axes: Axes, lines: Sequence[Line], x: str, label: str, index: int) -> None:
    good = [line for line in lines if line.loss is not None]
    positions = [float(value_of(line, x)) for line in good]
    losses = [line.loss for line in good if line.loss is not None]
    axes.errorbar(
        positions,
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
    for line in lines:
        if line.loss is None:
            axes.plot(
                float(value_of(line, x)), 0.97, "x", color=colour(index),
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip
