"""An attack drawn: ROC curves beside the guarantee's bound, samples a user, and the rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fedsim.accounting.rounding import text_up
from fedsim.attacks.schema import AttackReport, Curve, Group
from fedsim.report.charts import UNCOVERED, Axis, Chart, Panel, Point, Series, curve
from fedsim.report.style import colour
from fedsim.report.wording import NOT_COVERED, promised_text, terms_text

LEAST_RATE = 1e-3  # where the logarithmic axes begin


def attack_chart(report: AttackReport) -> Chart:
    """Return the picture: the ROC, linear and logarithmic, and the bound."""
    low, high = report.auroc_interval
    text = (
        f"AUROC {report.auroc:.3f} ({low:.3f} to {high:.3f}) with {report.samples_per_user} "
        f"samples a user, {report.users_in} trained and {report.users_out} held-out users: "
        f"{NOT_COVERED}. Promised: {promised_text(report.privacy)}."
    )
    if report.bound.auroc is not None:
        text += f" It allows an AUROC of {text_up(report.bound.auroc, 3)}."
    return Chart([attack_panels(report)[:2]], [text], least_height=4.2)


def attack_panels(report: AttackReport) -> list[Panel]:
    """Return both ROCs, the sweep over samples and, with checkpoints, the attack over rounds."""
    caption = UNCOVERED
    if report.bound.auroc is not None:
        caption = f"Dashed: what the guarantee allows; {terms_text(report.privacy)}. {caption}"
    panels = [
        _roc(report, "roc", "ROC", caption, log=False),
        _roc(report, "log-roc", "ROC, logarithmic", caption, log=True),
        _sweep(report.groups, caption),
    ]
    if len(report.checkpoints) > 1:
        gap = f"The wider the gap, the more the model overfits to its users. {caption}"
        title = "Loss on text that was not trained on"
        over = {
            name: [(state.round, getattr(state, name)) for state in report.checkpoints]
            for name in ("auroc", "loss_in", "loss_out")
        }
        losses = [
            _line("trained users", over["loss_in"], 0),
            _line("held-out users", over["loss_out"], 1),
        ]
        auroc = [_line("AUROC", over["auroc"], 0)]
        panels += [
            Panel("rounds", "AUROC over the rounds", caption, auroc, y=Axis("AUROC")),
            Panel("losses", title, gap, losses, y=Axis("nats a token"), legend=True),
        ]
    return panels


def shown_curves(report: AttackReport) -> list[tuple[str, Curve]]:
    """Return the curves worth drawing, with names: all statistics, or the mean of each group."""
    alone = len(report.groups) == 1
    return [
        (f"{curve.statistic} of {group.name}", curve)
        for group in report.groups
        for curve in group.curves
        if alone or curve.statistic == "mean"
    ]


def _roc(report: AttackReport, key: str, title: str, caption: str, *, log: bool) -> Panel:
    series = []
    for index, (name, found) in enumerate(shown_curves(report)):
        rates = zip(found.false_positive_rates, found.true_positive_rates, strict=True)
        # Of n held-out users the least rate above 0 is 1/n: nothing was measured left of it.
        series.append(_line(name, [pair for pair in rates if pair[0] > 0.0 or not log], index))
    diagonal = np.geomspace(LEAST_RATE, 1.0, 50).tolist()
    series.append(curve("guessing", zip(diagonal, diagonal, strict=True), width=1))
    bound = report.privacy.trade_off
    if report.bound.auroc is not None and bound is not None:
        rates = zip(bound.false_positive_rates, bound.true_positive_rates, strict=True)
        series.append(curve("the guarantee's bound", rates, dash="dash"))
    return Panel(
        key,
        title,
        caption,
        series,
        x=Axis("false positive rate", log, (LEAST_RATE if log else 0.0, 1.0)),
        y=Axis("true positive rate", log, (LEAST_RATE, 1.05) if log else (0.0, 1.01)),
        legend=True,
        closest=True,
    )


def _sweep(groups: Sequence[Group], caption: str) -> Panel:
    series = []
    for index, group in enumerate(groups):
        rows = sorted(
            (row for row in group.measured if row.statistic == "mean"), key=lambda row: row.samples
        )
        points = [Point(row.samples, row.auroc, *row.auroc_interval) for row in rows]
        series.append(Series(f"mean of {group.name}", points, colour(index), marks=True))
    counts = sorted({point.at for one in series for point in one.points})
    across = Axis("samples of a user that the attacker has", log=True, ticks=counts)
    title = "AUROC and samples a user"
    return Panel("samples", title, caption, series, across, Axis("AUROC"), legend=True)


def _line(name: str, points: Iterable[tuple[float, float]], index: int) -> Series:
    return Series(name, [Point(*point) for point in points], colour(index))
