"""The plots of an attack: ROC curves, linear and logarithmic, and the attack over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from fedsim.attacks.roc import Rates, roc_bound
from fedsim.attacks.schema import AttackReport, Curve
from fedsim.report.plots import GREY, Plot, base_figure, plain_data
from fedsim.report.style import colour
from fedsim.report.wording import NOT_COVERED, terms_text

NAMES = {"users": "users", "canaries": "canaries"}
LEAST_RATE = 1e-3  # where the logarithmic axes begin


def bound_curve(report: AttackReport) -> tuple[Rates, Rates] | None:
    """Return the guarantee's bound on the ROC, dense near 0, or None where there is none."""
    epsilon, delta = report.privacy.epsilon, report.privacy.delta
    if report.bound.auroc is None or epsilon is None or delta is None:
        return None
    corner = (1.0 - delta) * float(expit(-epsilon))  # where the two lines of the bound meet
    rates = np.sort(np.concatenate(([0.0, corner], np.geomspace(LEAST_RATE / 10, 1.0, 300))))
    return rates, roc_bound(rates, epsilon, delta)


def shown_curves(report: AttackReport) -> list[tuple[str, Curve]]:
    """Return the curves worth drawing, with names: all statistics, or the mean of each group."""
    if len(report.groups) == 1:
        group = report.groups[0]
        return [(f"{curve.statistic} of {NAMES[group.name]}", curve) for curve in group.curves]
    return [
        (f"{curve.statistic} of {NAMES[group.name]}", curve)
        for group in report.groups
        for curve in group.curves
        if curve.statistic == "mean"
    ]


def attack_plots(report: AttackReport) -> list[Plot]:
    """Return both ROCs, the sweep over samples and, with checkpoints, the attack over rounds."""
    caption = f"{NOT_COVERED[0].upper()}{NOT_COVERED[1:]}."
    if report.bound.auroc is not None:
        caption = f"Dashed: what the guarantee allows; {terms_text(report.privacy)}. {caption}"
    plots = [
        Plot("roc", "ROC", caption, plain_data(_roc(report, log=False))),
        Plot("log-roc", "ROC, logarithmic", caption, plain_data(_roc(report, log=True))),
        Plot("samples", "AUROC and samples a user", caption, plain_data(_sweep(report))),
    ]
    if len(report.checkpoints) > 1:
        plots += [
            Plot(
                "rounds", "AUROC over the rounds", caption, plain_data(_rounds(report, ["auroc"]))
            ),
            Plot(
                "losses",
                "Loss on text that was not trained on",
                f"The wider the gap, the more the model overfits to its users. {caption}",
                plain_data(_rounds(report, ["loss_in", "loss_out"])),
            ),
        ]
    return plots


def _roc(report: AttackReport, *, log: bool) -> Any:  # noqa: ANN401  (plotly has no types)
    figure = base_figure("true positive rate", "false positive rate")
    figure.update_layout(showlegend=True, hovermode="closest")
    for index, (name, curve) in enumerate(shown_curves(report)):
        _curve(figure, curve.false_positive_rates, curve.true_positive_rates, name, colour(index))
    diagonal = np.geomspace(LEAST_RATE, 1.0, 50)
    _curve(figure, diagonal, diagonal, "guessing", GREY, width=1)
    if (bound := bound_curve(report)) is not None:
        _curve(figure, *bound, "the guarantee's bound", GREY, dash="dash")
    if log:
        edge = float(np.log10(LEAST_RATE))
        figure.update_xaxes(type="log", range=[edge, 0])
        figure.update_yaxes(type="log", range=[edge, 0.02])
    else:
        figure.update_xaxes(range=[0, 1])
        figure.update_yaxes(range=[0, 1.01])
    return figure


def _sweep(report: AttackReport) -> Any:  # noqa: ANN401
    figure = base_figure("AUROC", "samples of a user that the attacker has")
    figure.update_layout(showlegend=True)
    for index, group in enumerate(report.groups):
        rows = sorted(
            (row for row in group.measured if row.statistic == "mean"), key=lambda row: row.samples
        )
        figure.add_scatter(
            x=[row.samples for row in rows],
            y=[row.auroc for row in rows],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [max(0.0, row.auroc_interval[1] - row.auroc) for row in rows],
                "arrayminus": [max(0.0, row.auroc - row.auroc_interval[0]) for row in rows],
            },
            name=f"mean of {NAMES[group.name]}",
            mode="lines+markers",
            line={"color": colour(index), "width": 2.5},
        )
    figure.update_xaxes(type="log", dtick="D1")
    return figure


def _rounds(report: AttackReport, fields: Sequence[str]) -> Any:  # noqa: ANN401
    figure = base_figure("AUROC" if fields == ["auroc"] else "nats a token")
    figure.update_layout(showlegend=len(fields) > 1)
    names = {"auroc": "AUROC", "loss_in": "trained users", "loss_out": "held-out users"}
    for index, field in enumerate(fields):
        _curve(
            figure,
            [state.round for state in report.checkpoints],
            [getattr(state, field) for state in report.checkpoints],
            names[field],
            colour(index),
        )
    return figure


def _curve(
    figure: Any,  # noqa: ANN401
    x: Sequence[float] | Rates,
    y: Sequence[float] | Rates,
    name: str,
    hue: str,
    *,
    width: float = 2.5,
    dash: str = "solid",
) -> None:
    figure.add_scatter(
        x=list(map(float, x)),
        y=list(map(float, y)),
        name=name,
        mode="lines",
        line={"color": hue, "width": width, "dash": dash},
    )
