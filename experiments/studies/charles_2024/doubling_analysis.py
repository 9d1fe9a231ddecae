"""Charles et al. 2024, Appendix I.1: sub-optimality of strategies that choose (G, M).

Pure functions of a table of losses {(ε, G, M): loss} of any task. The table's points are a
rectangle of powers of two, or its part up to some budget. For each budget G·M, a strategy returns
points with their frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fedsim.planner.doubling import Point, estimate_and_double

Losses = Mapping[tuple[float, int, int], float]
"""Loss by ε, G and M."""
Slice = Mapping[Point, float]
"""The losses at one ε."""
Choices = Mapping[int, Mapping[Point, float]]
"""By budget: points with their frequencies, which add up to 1."""

ORACLE, DOUBLING, PRINTED = "greedy local oracle", "Estimate-and-Double", "as printed"
RANDOM, MAX_COHORT, MAX_GROUP = "random", "max cohort", "max group size"
STRATEGIES = (ORACLE, DOUBLING, PRINTED, RANDOM, MAX_COHORT, MAX_GROUP)


class Excess(NamedTuple):
    """Loss of a strategy at one ε and budget.

    Attributes:
        epsilon: ε.
        budget: B = G·M.
        strategy: one of `STRATEGIES`.
        best_loss: minimum loss on the grid at that budget.
        suboptimality: expected loss of the strategy's points minus `best_loss`, >= 0.
    """

    epsilon: float
    budget: int
    strategy: str
    best_loss: float
    suboptimality: float


def suboptimality(
    losses: Losses,
    gradient_norms: Sequence[Callable[[int], float]],
    noise_multiplier: Callable[[float, int], float],
) -> list[Excess]:
    """Return the sub-optimality of every strategy at every ε and budget.

    Args:
        losses: losses at each ε on a rectangle of powers of two, whole or up to a budget; all
            strategies start at its smallest corner.
        gradient_norms: estimates of L_ULS(G) (eq. 8); over several the result is the average.
        noise_multiplier: σ_ULS of ε and M (eq. 3).
    """
    rows = []
    for epsilon in sorted({key[0] for key in losses}):
        table = at_epsilon(losses, epsilon)

        def sigma(cohort_size: int, epsilon: float = epsilon) -> float:
            return noise_multiplier(epsilon, cohort_size)

        choices: dict[str, Choices] = {
            ORACLE: greedy(table),
            DOUBLING: mixed([doubling(table, norm, sigma) for norm in gradient_norms]),
            PRINTED: mixed([as_printed(table, norm, sigma) for norm in gradient_norms]),
            RANDOM: everything(table),
            MAX_COHORT: extreme(table, "cohort_size"),
            MAX_GROUP: extreme(table, "group_size"),
        }
        for budget in budgets(table):
            least = table[best(table, budget)]
            rows += [
                Excess(epsilon, budget, name, least, _beyond(least, table, choices[name][budget]))
                for name in STRATEGIES
            ]
    return rows


def at_epsilon(losses: Losses, epsilon: float) -> dict[Point, float]:
    """Return the losses at one ε.

    Raises:
        ValueError: the points are not all splits, within a rectangle of powers of two, of the
            budgets up to the largest.
    """
    table = {Point(g, m): loss for (e, g, m), loss in losses.items() if e == epsilon}
    start, largest = corners(table)
    rectangle = {
        Point(start.group_size << i, start.cohort_size << j)
        for i in range(int(math.log2(largest.group_size / start.group_size)) + 1)
        for j in range(int(math.log2(largest.cohort_size / start.cohort_size)) + 1)
    }
    expected = {point for point in rectangle if point.budget <= budgets(table)[-1]}
    if expected != table.keys():
        odd = sorted((p.group_size, p.cohort_size) for p in expected ^ table.keys())
        raise ValueError(
            f"losses at ε = {epsilon}: not one run for each pair of powers "
            f"of two; missing or extra: {odd}"
        )
    return table


def corners(table: Slice) -> tuple[Point, Point]:
    """Return the smallest and the largest point of the rectangle; the latter may be missing."""
    sizes, cohorts = {p.group_size for p in table}, {p.cohort_size for p in table}
    return Point(min(sizes), min(cohorts)), Point(max(sizes), max(cohorts))


def budgets(table: Slice) -> list[int]:
    """Return the budgets of the grid, ascending."""
    return sorted({point.budget for point in table})


def splits(table: Slice, budget: int) -> list[Point]:
    """Return the points with a budget."""
    return [point for point in table if point.budget == budget]


def best(table: Slice, budget: int) -> Point:
    """Return the point with the least loss at a budget."""
    return min(splits(table, budget), key=lambda point: table[point])


def greedy(table: Slice) -> Choices:
    """Return the path of an oracle that knows the loss after each of the two doublings."""
    point, _ = corners(table)
    path = [point]
    while True:
        doubled = (
            Point(2 * point.group_size, point.cohort_size),
            Point(point.group_size, 2 * point.cohort_size),
        )
        inside = [p for p in doubled if p in table]
        if not inside:
            return _along(path)
        point = min(inside, key=lambda p: table[p])
        path.append(point)


def doubling(
    table: Slice, gradient_norm: Callable[[int], float], sigma: Callable[[int], float]
) -> Choices:
    """Return the path of `estimate_and_double` from the least to the largest budget."""
    start, largest = corners(table)
    end, steps = estimate_and_double(
        budgets(table)[-1], gradient_norm, sigma, start=start, largest=largest
    )
    return _along([*(step.point for step in steps), end])


def as_printed(
    table: Slice, gradient_norm: Callable[[int], float], sigma: Callable[[int], float]
) -> Choices:
    """Return the path of Algorithm 3 as printed, which compares σ(2M)/σ(M), not the noise σ(M)/M.

    Multiplying σ by M turns one comparison into the other.
    """
    return doubling(table, gradient_norm, lambda cohort: cohort * sigma(cohort))


def everything(table: Slice) -> Choices:
    """Return every point of a budget, with equal frequencies."""
    by_budget = {budget: splits(table, budget) for budget in budgets(table)}
    return {at: dict.fromkeys(points, 1.0 / len(points)) for at, points in by_budget.items()}


def extreme(table: Slice, field: str) -> Choices:
    """Return the point of a budget with the largest `field` (group or cohort size)."""
    return {
        budget: {max(splits(table, budget), key=lambda point: getattr(point, field)): 1.0}
        for budget in budgets(table)
    }


def mixed(several: Sequence[Choices]) -> Choices:
    """Return the average of several choices."""
    rows: dict[int, dict[Point, float]] = {budget: {} for budget in several[0]}
    for choices in several:
        for budget, points in choices.items():
            for point, often in points.items():
                rows[budget][point] = rows[budget].get(point, 0.0) + often / len(several)
    return rows


def _along(path: Sequence[Point]) -> Choices:
    return {point.budget: {point: 1.0} for point in path}


def _beyond(least: float, table: Slice, points: Mapping[Point, float]) -> float:
    return sum(often * (table[point] - least) for point, often in points.items())
