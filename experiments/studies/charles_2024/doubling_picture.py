"""Sub-optimality of strategies with intervals, and the picture of both doubling studies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from fedsim.experiments.studies.charles_2024.doubling_analysis import (
    PRINTED,
    STRATEGIES,
    Excess,
    at_epsilon,
    best,
    budgets,
)
from fedsim.experiments.studies.common.intervals import Interval
from fedsim.experiments.studies.common.output import clean, legend, new_figure
from fedsim.report.style import INK, colour

Chosen = Callable[[Excess], bool]


@dataclass(frozen=True, eq=False)
class Compared:
    """Comparison of the strategies on one task.

    Attributes:
        name: name of the task, such as "σ₂ = 4".
        losses: losses by (ε, G, M).
        rows: sub-optimality of each strategy at each ε and budget.
        resampled: (samples, rows), sub-optimality of the same rows with resampled trials.
    """

    name: str
    losses: dict[tuple[float, int, int], float]
    rows: list[Excess]
    resampled: npt.NDArray[np.float64]

    def interval(self, chosen: Chosen) -> Interval:
        """Return the mean over the chosen rows, with percentiles over resamples."""
        some = np.array([chosen(row) for row in self.rows])
        value = np.mean([row.suboptimality for row in self.rows if chosen(row)])
        low, high = np.percentile(self.resampled[:, some].mean(axis=1), [2.5, 97.5])
        return Interval(float(value), float(low), float(high))


def chosen(strategy: str, epsilon: float | None = None) -> Chosen:
    """Return a filter for a strategy's rows, of one ε or of all."""
    return lambda row: row.strategy == strategy and epsilon in {None, row.epsilon}


def shown(interval: Interval) -> str:
    """Return an interval with four decimals, as most differences are small."""
    return f"{interval.value:.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def means(task: Compared) -> str:
    """Return every strategy's mean sub-optimality with its interval, on one line."""
    listed = (f"{name} {shown(task.interval(chosen(name)))}" for name in STRATEGIES)
    return f"{task.name}, mean sub-optimality: {', '.join(listed)}."


def draw(compared: list[Compared], terms: str) -> Figure:
    """Draw a row for each task: loss by G and M at each ε, then sub-optimality of strategies."""
    epsilons = sorted({row.epsilon for row in compared[0].rows})
    figure = new_figure(
        max(8.4, 4.0 + 2.2 * len(epsilons)),  # the title's width
        1.6 + 2.5 * len(compared),
        "Loss by group and cohort size, and what each strategy for choosing them loses",
        f"{terms}. Framed: the best split of each budget. Curves: mean over "
        "ε, bands one standard deviation over ε.",
    )
    widths = [1.0] * len(epsilons) + [1.8]
    panels = figure.subplots(len(compared), len(widths), squeeze=False, width_ratios=widths)
    for row, task in zip(panels, compared, strict=True):
        for axes, epsilon in zip(row, epsilons, strict=False):
            _heat(axes, task, epsilon)
        _curves(row[-1], task)
        row[0].set_ylabel(f"{task.name}\nM", fontsize=8, color=INK)
    legend(figure, panels[0, -1])
    return figure


def _heat(axes: Axes, task: Compared, epsilon: float) -> None:
    table = at_epsilon(task.losses, epsilon)
    sizes = sorted({p.group_size for p in table})
    cohorts = sorted({p.cohort_size for p in table})
    by_point = {(p.group_size, p.cohort_size): loss for p, loss in table.items()}
    values = np.array([[by_point.get((g, m), np.nan) for g in sizes] for m in cohorts])
    axes.imshow(np.log(values), origin="lower", cmap=mpl.colormaps["viridis_r"], aspect="auto")
    low, high = min(table.values()), max(table.values())
    digits = _digits(low, high)
    for (i, j), value in np.ndenumerate(values):
        if np.isnan(value):  # beyond the largest budget
            continue
        shade = "white" if value > np.sqrt(low * high) else INK
        axes.text(j, i, f"{value:.{digits}g}", ha="center", va="center", fontsize=6, color=shade)
    for budget in budgets(table):
        point = best(table, budget)
        corner = sizes.index(point.group_size) - 0.44, cohorts.index(point.cohort_size) - 0.44
        axes.add_patch(Rectangle(corner, 0.88, 0.88, fill=False, edgecolor="black", lw=1.6))
    axes.set_title(f"ε = {epsilon:g}", loc="left", fontsize=9, color=INK)
    axes.set_xticks(range(len(sizes)), [str(size) for size in sizes], fontsize=7)
    axes.set_yticks(range(len(cohorts)), [str(cohort) for cohort in cohorts], fontsize=7)
    axes.set_xlabel("G", fontsize=8, color=INK)


def _digits(low: float, high: float) -> int:
    """Return the significant digits by which values from `low` to `high` differ, at least two."""
    return 2 + max(0, round(math.log10(high / max(high - low, 1e-4 * high))))


def _curves(axes: Axes, task: Compared) -> None:
    clean(axes, "sub-optimality", x="B: gradients a round")
    places = sorted({row.budget for row in task.rows})
    for index, strategy in enumerate(STRATEGIES):
        at = [
            [r.suboptimality for r in task.rows if (r.strategy, r.budget) == (strategy, budget)]
            for budget in places
        ]
        mean, spread = np.mean(at, axis=1), np.std(at, axis=1)
        printed = strategy == PRINTED  # drawn on top: it often equals max group size
        axes.plot(
            places,
            mean,
            "o:" if printed else "o-",
            color=colour(index),
            ms=3,
            lw=1.6,
            label=strategy,
            zorder=4 if printed else 3,
        )
        axes.fill_between(
            places, np.maximum(mean - spread, 0.0), mean + spread, color=colour(index), alpha=0.12
        )
    axes.set_xscale("log", base=2)
