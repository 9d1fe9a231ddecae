"""What the numbers of the estimate-and-double study say about the claims of Appendix I.1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.studies.doubling_analysis import (
    DOUBLING,
    MAX_COHORT,
    MAX_GROUP,
    ORACLE,
    PRINTED,
    RANDOM,
    STRATEGIES,
    Excess,
)
from experiments.studies.intervals import Interval

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
