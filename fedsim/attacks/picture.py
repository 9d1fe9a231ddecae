"""An attack as one PNG: both ROCs beside what the guarantee allows."""

from __future__ import annotations

import io
import textwrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedsim.attacks.plots import LEAST_RATE, bound_curve, shown_curves
from fedsim.attacks.schema import AttackReport
from fedsim.report.pictures import clean
from fedsim.report.style import MUTED, RULE, colour
from fedsim.report.wording import NOT_COVERED, guarantee_text, terms_text

SIZE, DPI = (8.0, 4.2), 200  # inches and dots an inch


def draw_attack(report: AttackReport) -> bytes:
    """Return a PNG, 1600 × 840 pixels: the ROC, linear and logarithmic, and the bound."""
    figure = Figure(figsize=SIZE, dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    linear, log = figure.add_axes((0.07, 0.21, 0.4, 0.69)), figure.add_axes((0.57, 0.21, 0.4, 0.69))
    for axes, title in ((linear, "ROC"), (log, "ROC, logarithmic")):
        clean(axes, title)
        _draw(axes, report)
    linear.set(xlim=(0, 1), ylim=(0, 1.01))
    log.set(xscale="log", yscale="log", xlim=(LEAST_RATE, 1), ylim=(LEAST_RATE, 1.05))
    log.minorticks_off()
    linear.legend(fontsize=6.5, frameon=False, loc="lower right")
    low, high = report.auroc_interval
    text = (
        f"AUROC {report.auroc:.3f} ({low:.3f} to {high:.3f}) with {report.samples_per_user} "
        f"samples a user, {report.users_in} trained and {report.users_out} held-out users: "
        f"{NOT_COVERED}. Promised: {guarantee_text(report.privacy)}; {terms_text(report.privacy)}."
    )
    if report.bound.auroc is not None:
        text += f" It allows an AUROC of {report.bound.auroc:.3f}."
    wrapped = "\n".join(textwrap.wrap(text, 175))
    figure.text(0.0125, 0.03, wrapped, fontsize=5.5, color=MUTED, parse_math=False)
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def _draw(axes: Axes, report: AttackReport) -> None:
    axes.set_xlabel("false positive rate", fontsize=7, color=MUTED)
    axes.set_ylabel("true positive rate", fontsize=7, color=MUTED)
    axes.grid(color=RULE, linewidth=0.6)
    for index, (name, curve) in enumerate(shown_curves(report)):
        axes.plot(
            curve.false_positive_rates,
            curve.true_positive_rates,
            color=colour(index),
            linewidth=1.6,
            label=name,
        )
    diagonal = np.geomspace(LEAST_RATE, 1.0, 50)
    axes.plot(diagonal, diagonal, color=MUTED, linewidth=0.8, label="guessing")
    if (bound := bound_curve(report)) is not None:
        axes.plot(*bound, color=MUTED, linewidth=1.2, linestyle="--", label="the guarantee's bound")
