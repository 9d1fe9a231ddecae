"""The interactive plots of the pages, as plotly figures in plain data.

Colours of text and grid are left to the page, which follows the reader's light or dark theme.
Names are escaped: plotly reads a subset of HTML in its texts.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from fedsim.report.comparison import ComparedRun, distinct_starts
from fedsim.report.schema import Privacy, RoundMetrics, Scores, is_finite
from fedsim.report.style import colour, dash, shorten
from fedsim.report.wording import NOT_COVERED, decimal_text, terms_text

GREY = "#87909c"  # readable on white and on black


class Plot(NamedTuple):
    """A titled figure: `figure` is plotly's JSON, `caption` stands below it."""

    key: str
    title: str
    caption: str
    figure: dict[str, Any]


def run_plots(metrics: Sequence[RoundMetrics], initial: Scores, privacy: Privacy) -> list[Plot]:
    """Return the plots of one run: held-out loss, ε, top-1 accuracy, cohort size.

    Args:
        metrics: the lines of `metrics.jsonl`.
        initial: utility before the first round, drawn as a dashed line.
        privacy: the promise; its terms stand below the plot of ε. Without a guarantee there is
            no such plot: an ε on the way to none means nothing.
    """
    scored = [(line.round, line.held_out) for line in metrics if line.held_out is not None]
    losses = [(number, scores.loss) for number, scores in scored]
    accuracies = [(number, 100 * scores.accuracy_top1) for number, scores in scored]
    trained = [(line.round, line.train_loss) for line in metrics if line.train_loss is not None]
    epsilons = [(line.round, line.epsilon) for line in metrics if is_finite(line.epsilon)]
    cohorts = [(line.round, line.units) for line in metrics if line.units is not None]

    loss = base_figure("nats a token")
    if trained:
        _line(loss, trained, "cohort's training loss", GREY, width=1)
    _line(loss, losses, "held-out loss", colour(0))
    add_start(loss, initial.loss, decimal_text(initial.loss, 2))
    accuracy = base_figure("per cent")
    _line(accuracy, accuracies, "top-1 accuracy", colour(2))
    add_start(
        accuracy, 100 * initial.accuracy_top1, f"{decimal_text(100 * initial.accuracy_top1, 1)} %"
    )
    cohort = base_figure("units")
    cohort.update_yaxes(rangemode="tozero")
    _line(cohort, cohorts, "cohort size", colour(3), width=1.5)
    uncovered = f"{NOT_COVERED[0].upper()}{NOT_COVERED[1:]}."
    training = " The grey line is the training loss of each cohort." if trained else ""
    plots = [Plot("loss", "Held-out loss", uncovered + training, plain_data(loss))]
    if epsilons and privacy.epsilon is not None:
        spent = base_figure("ε")
        spent.update_yaxes(rangemode="tozero")
        _line(spent, epsilons, "ε spent", colour(1))
        plots.append(
            Plot("epsilon", "Privacy loss ε spent", f"{terms_text(privacy)}.", plain_data(spent))
        )
    plots.append(Plot("accuracy", "Top-1 accuracy", uncovered, plain_data(accuracy)))
    plots.append(
        Plot("cohort", "Cohort size", f"Units drawn a round. {uncovered}", plain_data(cohort))
    )
    return plots


def comparison_plots(runs: Sequence[ComparedRun]) -> list[Plot]:
    """Return held-out loss and, where any run spent one, ε against rounds for all runs."""
    loss, spent = base_figure("nats a token"), base_figure("ε")
    spent.update_yaxes(rangemode="tozero")
    for figure in (loss, spent):
        figure.update_layout(showlegend=True)
    for index, run in enumerate(runs):
        name = html.escape(shorten(run.label, 40))
        curve = [(point.round, point.loss) for point in run.curve]
        _line(loss, curve, name, colour(index), style=dash(index))
        epsilons = [(point.round, point.epsilon) for point in run.curve if is_finite(point.epsilon)]
        if epsilons and run.privacy.epsilon is not None:
            _line(spent, epsilons, name, colour(index), style=dash(index))
    for start in distinct_starts(runs):
        add_start(loss, start.loss, decimal_text(start.loss, 2))
    uncovered = f"{NOT_COVERED[0].upper()}{NOT_COVERED[1:]}."
    plots = [Plot("loss", "Held-out loss", uncovered, plain_data(loss))]
    if spent.data:
        terms = ". ".join(f"{run.label}: {terms_text(run.privacy)}" for run in runs)
        plots.append(Plot("epsilon", "Privacy loss ε spent", f"{terms}.", plain_data(spent)))
    return plots


def base_figure(unit: str, across: str = "round") -> Any:  # noqa: ANN401  (plotly has no types)
    """Return an empty figure that cannot be zoomed: `unit` above the y axis, `across` below x."""
    axis = {
        "zeroline": False,
        "showline": False,
        "ticks": "",
        "automargin": True,
        "ticklabelstandoff": 5,
        "fixedrange": True,
    }
    figure = go.Figure(layout={"template": "none"})
    figure.update_layout(
        height=300,
        margin={"l": 8, "r": 16, "t": 26, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12},
        showlegend=False,
        legend={"orientation": "h", "x": 0, "y": -0.27, "yanchor": "top"},
        hovermode="x unified",
        xaxis={
            **axis,
            "showgrid": False,
            "title": {"text": across, "standoff": 4, "font": {"size": 12}},
            "rangemode": "tozero",
        },
        yaxis={**axis, "nticks": 6},
    )
    # The unit stands at the top of its axis, where it reads without turning one's head.
    figure.add_annotation(
        text=unit, x=0, y=1, xref="paper", yref="paper", xanchor="left", yanchor="bottom",
        xshift=-2, yshift=6, showarrow=False,
    )  # fmt: skip
    return figure


def _line(
    figure: Any,  # noqa: ANN401
    points: Iterable[tuple[int, float | None]],
    name: str,
    hue: str,
    *,
    width: float = 2.5,
    style: str = "solid",
) -> None:
    """Add a curve; an infinite or NaN value is a gap."""
    pairs = [(number, value if is_finite(value) else None) for number, value in points]
    few = len(pairs) <= 60  # then marks show where the evaluations are
    figure.add_scatter(
        x=[number for number, _ in pairs],
        y=[value for _, value in pairs],
        name=name,
        mode="lines+markers" if few and width > 2 else "lines",
        line={"color": hue, "width": width, "dash": style},
        marker={"size": 5},
        hovertemplate="%{y:.4~g}",
    )


def add_start(figure: Any, value: float, text: str) -> None:  # noqa: ANN401
    """Draw the starting point as a dashed level, if it is finite."""
    if is_finite(value):
        figure.add_hline(
            y=value,
            line={"color": GREY, "width": 1, "dash": "dash"},
            annotation={"text": f"start {text}", "font": {"size": 11}},
            annotation_position="top right",
        )


def plain_data(figure: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the figure as plotly's JSON."""
    data: dict[str, Any] = json.loads(figure.to_json())
    return data
