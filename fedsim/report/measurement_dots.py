"""The losses of a measured grid in which neither ε nor the budget varies: a dot for each line."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedsim.report.measurement import Measurement
from fedsim.report.panels import distinct, drawn, limits, trouble
from fedsim.report.pictures import clean
from fedsim.report.style import INK, MUTED, RULE, colour, shorten
from fedsim.report.wording import decimal_text, epsilon_text


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
