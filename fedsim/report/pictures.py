"""A comparison as one PNG for a page or a slide, drawn without pyplot's global state."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsim.report.comparison import ComparedRun, Comparison, distinct_starts
from fedsim.report.schema import is_finite
from fedsim.report.style import INK, MUTED, RULE, colour, dash, shorten, spread
from fedsim.report.wording import NOT_COVERED, decimal_text, epsilon_text, terms_text

WIDTH, HEIGHT, DPI = 8.0, 3.5, 200  # inches and dots an inch: 1600 × 700 pixels
TERMS_LINE, BAR_ROW = 0.13, 0.42  # inches
HEAD, AXIS_FOOT = 0.42, 0.45  # inches, above and below the panels


def draw_comparison(comparison: Comparison) -> bytes:
    """Draw held-out loss against rounds, and final perplexity, for every run.

    Args:
        comparison: what `compare` returned. A point that is infinite or NaN is left out of its
            curve; a perplexity that is not finite is written where its bar would be.

    Returns:
        A PNG, 1600 × 700 pixels, higher where many runs or lines of terms need it.
    """
    terms = _terms(comparison.runs)
    foot = AXIS_FOOT + 0.08 + TERMS_LINE * len(terms)
    height = max(HEIGHT, HEAD + foot + BAR_ROW * len(comparison.runs))
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    span = 1 - (HEAD + foot) / height
    _draw_curves(figure.add_axes((0.05, foot / height, 0.4, span)), comparison)
    _draw_bars(figure.add_axes((0.61, foot / height, 0.37, span)), comparison)
    for number, line in enumerate(reversed(terms)):
        y = (0.09 + TERMS_LINE * number) / height
        figure.text(0.0125, y, line, fontsize=5.5, color=MUTED, parse_math=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _terms(runs: Sequence[ComparedRun]) -> list[str]:
    """Return what each ε is an ε of, runs with the same terms together, in lines that fit."""
    grouped: dict[str, list[str]] = {}
    for run in runs:
        grouped.setdefault(terms_text(run.privacy), []).append(shorten(run.label, 30))
    sentences = [f"{', '.join(labels)}: {terms}." for terms, labels in grouped.items()]
    sentences.append(f"Loss and perplexity: {NOT_COVERED}.")
    return [line for sentence in sentences for line in textwrap.wrap(sentence, 178)]


def _draw_curves(axes: Axes, comparison: Comparison) -> None:
    clean(axes, "Held-out loss, nats a token")
    axes.set_xlabel("round", fontsize=7, color=MUTED)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    ends: list[tuple[int, float]] = []
    for index, run in enumerate(comparison.runs):
        points = [(point.round, point.loss) for point in run.curve if is_finite(point.loss)]
        if not points:
            continue
        rounds, losses = zip(*points, strict=True)
        style = {"dash": "--", "dot": ":", "dashdot": "-."}.get(dash(index), "-")
        axes.plot(rounds, losses, color=colour(index), linewidth=1.8, linestyle=style)
        axes.plot(rounds[-1], losses[-1], "o", color=colour(index), markersize=3.5)
        ends.append((index, losses[-1]))
    for start in distinct_starts(comparison.runs):
        if is_finite(start.loss):
            axes.axhline(start.loss, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
            write_on_level(
                axes, 0.99, start.loss, f"start {decimal_text(start.loss, 2)}", above=True
            )
    axes.margins(x=0.01, y=0.1)
    _label_ends(axes, comparison.runs, ends)


def _label_ends(axes: Axes, runs: Sequence[ComparedRun], ends: Sequence[tuple[int, float]]) -> None:
    low, high = axes.get_ylim()
    heights = spread([(loss - low) / (high - low) for _, loss in ends], gap=0.075)
    for (index, _), y in zip(ends, heights, strict=True):
        axes.text(
            1.02,
            y,
            shorten(runs[index].label, 18),
            transform=axes.transAxes,
            color=colour(index),
            fontsize=7.5,
            fontweight="bold",
            va="center",
            parse_math=False,
        )


def _draw_bars(axes: Axes, comparison: Comparison) -> None:
    clean(axes, "Final perplexity")
    starts = [s.perplexity for s in distinct_starts(comparison.runs) if is_finite(s.perplexity)]
    finals = [run.final.perplexity for run in comparison.runs]
    # A run that diverged must not flatten the others: its bar is cut, its value is written.
    limit = 1.25 * max(starts, default=max(filter(is_finite, finals), default=1.0))
    for index, run in enumerate(comparison.runs):
        value = run.final.perplexity
        length = min(value, limit) if is_finite(value) else 0.0
        axes.barh(index + 0.16, length, height=0.4, color=colour(index))
        epsilon = run.privacy.epsilon
        promise = "no guarantee" if epsilon is None else f"ε = {epsilon_text(epsilon)}"
        if run.privacy.hypothetical:
            promise = f"hypothetical {promise}"
        shown = "diverged" if run.diverged else decimal_text(value, 1)
        text = f"{shorten(run.label, 24)}   {shown}   {promise}"
        axes.text(0, index - 0.1, text, fontsize=7.5, color=INK, parse_math=False)
    for start in starts:
        axes.axvline(start, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.text(
            start,
            -0.55,
            f"start {decimal_text(start, 1)} ",
            fontsize=6.5,
            color=MUTED,
            ha="right",
            va="top",
        )
    axes.set_xlim(0, limit)
    axes.set_ylim(max(len(comparison.runs), 2) - 0.45, -0.6)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))


def clean(axes: Axes, title: str) -> None:
    """Leave a bottom spine, small muted ticks and a title on the left."""
    axes.set_title(title, loc="left", fontsize=9.5, fontweight="bold", color=INK, pad=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.tick_params(colors=MUTED, labelsize=7, length=0, pad=4)


def write_on_level(axes: Axes, x: float, y: float, text: str, *, above: bool) -> None:
    """Write on a horizontal line: x a share of the width, y in data."""
    axes.annotate(
        text,
        (x, y),
        xycoords=axes.get_yaxis_transform(),
        xytext=(0, 3 if above else -8),
        textcoords="offset points",
        ha="right",
        fontsize=6.5,
        color=MUTED,
    )
