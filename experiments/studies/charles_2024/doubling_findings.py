"""What the numbers of the estimate-and-double study say, and their picture."""

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

from experiments.studies.charles_2024.doubling_analysis import (
    DOUBLING,
    MAX_COHORT,
    MAX_GROUP,
    ORACLE,
    PRINTED,
    RANDOM,
    STRATEGIES,
    Excess,
    at_epsilon,
    best,
    budgets,
)
from experiments.studies.common.intervals import Interval
from experiments.studies.common.output import clean, new_figure
from fedsim.report.style import INK, colour


def draw(compared: list[Compared], terms: str) -> Figure:
    """Draw a row for each task: the loss by G and M at each ε, then what strategies lose."""
    epsilons = sorted({row.epsilon for row in compared[0].rows})
    figure = new_figure(
        max(8.4, 4.0 + 2.2 * len(epsilons)),  # the title's width
        1.6 + 2.5 * len(compared),
        "Loss by group and cohort size, and what each strategy for choosing them loses",
        f"{terms[0].upper()}{terms[1:]}. Framed: the best split of each budget. Curves: mean over "
        "ε, bands one standard deviation over ε.",
    )
    widths = [1.0] * len(epsilons) + [1.8]
    panels = figure.subplots(len(compared), len(widths), squeeze=False, width_ratios=widths)
    for row, task in zip(panels, compared, strict=True):
        for axes, epsilon in zip(row, epsilons, strict=False):
            _heat(axes, task, epsilon)
        _curves(row[-1], task)
        row[0].set_ylabel(f"{task.name}\nM", fontsize=8, color=INK)
    handles, labels = panels[0, -1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
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
    """Return how many significant digits tell values from `low` to `high` apart, at least two."""
    return 2 + max(0, round(math.log10(high / max(high - low, 1e-4 * high))))


def _curves(axes: Axes, task: Compared) -> None:
    clean(axes, "sub-optimality")
    places = sorted({row.budget for row in task.rows})
    for index, strategy in enumerate(STRATEGIES):
        at = [
            [r.suboptimality for r in task.rows if (r.strategy, r.budget) == (strategy, budget)]
            for budget in places
        ]
        mean, spread = np.mean(at, axis=1), np.std(at, axis=1)
        printed = strategy == PRINTED  # on top: it often takes what max group size takes
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
    axes.set_xlabel("B: gradients a round", fontsize=8, color=INK)


Chosen = Callable[[Excess], bool]


@dataclass(frozen=True, eq=False)
class Spread:
    """Sub-optimality, and what it is when the trials are drawn again.

    Attributes:
        rows: as measured.
        resampled: (samples, rows), of the same rows.
    """

    rows: list[Excess]
    resampled: npt.NDArray[np.float64]

    def interval(self, of: Chosen, less: Chosen | None = None) -> Interval:
        """Return the mean over some rows, minus that over others, with its percentiles."""
        one = np.array([of(row) for row in self.rows])
        measured = np.array([row.suboptimality for row in self.rows])
        value, samples = measured[one].mean(), self.resampled[:, one].mean(axis=1)
        if less is not None:
            other = np.array([less(row) for row in self.rows])
            value = value - measured[other].mean()
            samples = samples - self.resampled[:, other].mean(axis=1)
        low, high = np.percentile(samples, [2.5, 97.5])
        return Interval(float(value), float(low), float(high))


@dataclass(frozen=True, eq=False)
class Compared:
    """One task's comparison.

    Attributes:
        name: of the task, such as "σ₂ = 4".
        losses: by (ε, G, M).
        rows: what each strategy loses at each ε and budget.
        spread: the same with intervals.
        at_edge: sweeps whose best learning rate is on the edge.
    """

    name: str
    losses: dict[tuple[float, int, int], float]
    rows: list[Excess]
    spread: Spread
    at_edge: int

    strategies = STRATEGIES


def chosen(strategy: str, epsilon: float | None = None) -> Chosen:
    """Return what picks a strategy's rows, of one ε or of all."""
    return lambda row: row.strategy == strategy and epsilon in {None, row.epsilon}


def shown(interval: Interval) -> str:
    """Return it with four decimals: most differences here are small."""
    return f"{interval.value:.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def findings(compared: list[Compared]) -> list[str]:
    """Return sentences for each task, and on the sweeps."""
    sentences = [sentence for task in compared for sentence in of_task(task)]
    edges = sum(task.at_edge for task in compared)
    total = sum(len(task.losses) for task in compared)
    return [
        *sentences,
        f"The best learning rate lies on the edge of the sweep in {edges} of {total} sweeps.",
    ]


def of_task(task: Compared) -> list[str]:
    """Return how the strategies stand to each other on one task, overall and by ε."""
    name, spread = task.name, task.spread
    mean = {strategy: spread.interval(chosen(strategy)) for strategy in STRATEGIES}
    least = np.mean([row.best_loss for row in task.rows if row.strategy == DOUBLING])
    against = {
        other: spread.interval(chosen(DOUBLING), chosen(other))
        for other in (ORACLE, RANDOM, MAX_COHORT, MAX_GROUP)
    }
    rest = [other for other in (RANDOM, MAX_COHORT, MAX_GROUP) if _has_spread(against[other])]
    beaten = [other for other in rest if against[other].high < 0]
    lost = [other for other in rest if against[other].low > 0]
    close = {strategy: _within_a_percent(task.rows, strategy) for strategy in STRATEGIES}
    pairs = len(task.rows) // len(STRATEGIES)
    texts = {strategy: shown(interval) for strategy, interval in mean.items()}
    return [
        f"{name}: averaged over ε and budgets, Estimate-and-Double is {texts[DOUBLING]} above the "
        f"best split, the greedy local oracle {texts[ORACLE]}, random {texts[RANDOM]}, max cohort "
        f"{texts[MAX_COHORT]}, max group size {texts[MAX_GROUP]}; the best splits' loss is "
        f"{least:.4f} on average.",
        f"{name}: Estimate-and-Double loses {shown(against[ORACLE])} more than the oracle on "
        f"average. Its loss is within 1 % of the best split's at {close[DOUBLING]} of {pairs} "
        f"pairs of ε and budget, the oracle's at {close[ORACLE]}, max cohort's at "
        f"{close[MAX_COHORT]}, max group size's at {close[MAX_GROUP]}.",
        f"{name}: on average it is better, by more than chance, than {_listed(beaten)}; worse "
        f"than {_listed(lost)}.",
        _where(task),
        _as_printed(task, mean[PRINTED]),
    ]


def _has_spread(interval: Interval) -> bool:
    """Say whether it is more than a point: of a single run nothing is known beyond chance."""
    return interval.low < interval.high


def _within_a_percent(rows: list[Excess], strategy: str) -> int:
    return sum(r.suboptimality <= 0.01 * r.best_loss for r in rows if r.strategy == strategy)


def _where(task: Compared) -> str:
    """Name the ε at which it loses most, and what would have been better there."""
    epsilons = sorted({row.epsilon for row in task.rows})
    parts = []
    for epsilon in epsilons:
        at = [row for row in task.rows if row.epsilon == epsilon]
        by = {s: np.mean([r.suboptimality for r in at if r.strategy == s]) for s in STRATEGIES}
        winner = min((RANDOM, MAX_COHORT, MAX_GROUP), key=lambda s: by[s])
        parts.append(
            f"ε = {epsilon:g}: {by[DOUBLING]:.4f} (best of the rest: {winner}, {by[winner]:.4f})"
        )
    return f"{task.name}, Estimate-and-Double by ε: {'; '.join(parts)}."


def _as_printed(task: Compared, mean: Interval) -> str:
    pairs = _paired(task.rows, PRINTED, MAX_GROUP)
    same = sum(abs(ours - theirs) < 1e-12 for ours, theirs in pairs)
    return (
        f"{task.name}: as printed the algorithm takes what max group size "
        f"takes at {same} of {len(pairs)} pairs of ε and budget, and is {shown(mean)} "
        "above the best."
    )


def _paired(rows: list[Excess], one: str, other: str) -> list[tuple[float, float]]:
    values = {(row.strategy, row.epsilon, row.budget): row.suboptimality for row in rows}
    keys = [(row.epsilon, row.budget) for row in rows if row.strategy == one]
    return [(values[one, *key], values[other, *key]) for key in keys]


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none of random, max cohort and max group size"
