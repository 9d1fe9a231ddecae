"""Pictures of an attack: ROC curves with the guarantee's bound, samples per user, rounds."""

from __future__ import annotations

from fedsim.accounting.rounding import text_up
from fedsim.report.attack_report import AttackReport
from fedsim.report.figures import Axis, Chart, Panel, Point, Series, curve
from fedsim.report.style import colour
from fedsim.report.wording import NOT_COVERED, promised_text

LEAST_RATE = 1e-3  # start of the logarithmic axes


def attack_chart(report: AttackReport) -> Chart:
    """Return the picture: the ROC, linear and logarithmic, and the bound."""
    low, high = report.auroc_interval
    text = (
        f"AUROC {report.auroc:.3f} ({low:.3f} to {high:.3f}) with {report.samples_per_user} "
        f"samples per user, {report.users_in} trained and {report.users_out} held-out users: "
        f"{NOT_COVERED}. Guarantee: {promised_text(report.privacy)}."
    )
    if report.bound.auroc is not None:
        text += f" It allows an AUROC of up to {text_up(report.bound.auroc, 3)}."
    return Chart([attack_panels(report)[:2]], [text])


def attack_panels(report: AttackReport) -> list[Panel]:
    """Return panels: both ROCs, AUROC over samples and, with checkpoints, over rounds."""
    panels = [
        _roc(report, "roc", "ROC", 0.0),
        _roc(report, "log-roc", "ROC, logarithmic", LEAST_RATE),
        _sweep(report),
    ]
    states = report.checkpoints
    if len(states) > 1:
        auroc = curve("AUROC", [(state.round, state.auroc) for state in states], colour(0))
        losses = [
            curve("trained users", [(state.round, state.loss_in) for state in states], colour(0)),
            curve("held-out users", [(state.round, state.loss_out) for state in states], colour(1)),
        ]
        gap = "The wider the gap, the more the model overfits to its users."
        title = "Loss on text outside the training data"
        panels += [
            Panel("rounds", "AUROC over the rounds", "", [auroc], y=Axis("AUROC")),
            Panel("losses", title, gap, losses, y=Axis("nats per token")),
        ]
    return panels


def _roc(report: AttackReport, key: str, title: str, least: float) -> Panel:
    """Return a panel of ROCs, with logarithmic axes if `least` is above zero.

    It shows all statistics of a single group, or the mean of several groups.
    """
    log = least > 0.0
    shown = [
        (f"{roc.statistic} of {group.name}", roc)
        for group in report.groups
        for roc in group.curves
        if len(report.groups) == 1 or roc.statistic == "mean"
    ]
    series = []
    for index, (name, roc) in enumerate(shown):
        rates = zip(roc.false_positive_rates, roc.true_positive_rates, strict=True)
        # With n held-out users the smallest measured rate above 0 is 1/n.
        points = [Point(*pair) for pair in rates if pair[0] > 0.0 or not log]
        series.append(Series(name, points, colour(index)))
    series.append(curve("guessing", [(least, least), (1.0, 1.0)], width=0.7))
    bound = report.privacy.trade_off
    if report.bound.auroc is not None and bound is not None:
        series.append(curve("the guarantee's bound", bound.roc, dash="--", width=1.0))
    x = Axis("false positive rate", log, (least, 1.0))
    y = Axis("true positive rate", log, (least, 1.05 if log else 1.01))
    return Panel(key, title, "", series, x, y)


def _sweep(report: AttackReport) -> Panel:
    series = []
    for index, group in enumerate(report.groups):
        rows = [row for row in group.measured if row.statistic == "mean"]
        points = sorted(Point(row.samples, row.auroc, *row.auroc_interval) for row in rows)
        series.append(Series(f"mean of {group.name}", points, colour(index), marks=True))
    counts = sorted({point.at for one in series for point in one.points})
    x = Axis("samples per user that the attacker has", log=True, ticks=counts)
    return Panel("samples", "AUROC and samples per user", "", series, x, Axis("AUROC"))
