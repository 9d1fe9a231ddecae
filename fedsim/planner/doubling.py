"""Estimate-and-Double: group size and cohort of ULS for a budget (Charles et al. 2024, Alg. 3).

As printed, the algorithm compares L(2G)/L(G) with σ(2M)/σ(M) (eqs 9 to 11). The first ratio is at
most about 1. The second is at least 1, because σ does not fall if more users are sampled. So the
cohort would never grow. This module compares the noise of the estimate, σ(M) L(G) / M (eq. 6):
L(2G)/L(G) with σ(2M)/(2σ(M)).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """An operating point of ULS: M expected users per round, with G examples each."""

    group_size: int
    cohort_size: int

    @property
    def budget(self) -> int:
        """Gradients per round, if all users have `group_size` examples."""
        return self.group_size * self.cohort_size


@dataclass(frozen=True)
class Doubling:
    """One step of the algorithm.

    Attributes:
        point: point before the step.
        group_factor: τ_G = L(2G)/L(G), the factor on the noise if the group size doubles;
            infinite if it cannot grow.
        cohort_factor: τ_M = σ(2M)/(2σ(M)), the factor on the noise if the cohort doubles;
            infinite if it cannot grow.
        doubled: "group_size" or "cohort_size"; a tie doubles the cohort.
    """

    point: Point
    group_factor: float
    cohort_factor: float
    doubled: str


def estimate_and_double(
    budget: int,
    gradient_norm: Callable[[int], float],
    noise_multiplier: Callable[[int], float],
    *,
    start: Point,
    largest: Point,
) -> tuple[Point, tuple[Doubling, ...]]:
    """Return the first point that reaches `budget`, and the steps to it.

    Args:
        budget: B, gradients per round.
        gradient_norm: L_ULS(G), such as the median norm of users' averaged gradients (eq. 8).
        noise_multiplier: σ_ULS(M) at the given (ε, δ) (eq. 3).
        start: the first point; the paper takes G = 1, M = 32.
        largest: upper bounds: the largest user's number of examples, and the number of users. If
            neither number can grow, the last point is returned, below the budget.
    """
    point, steps = start, []
    while point.budget < budget:
        can_group = 2 * point.group_size <= largest.group_size
        can_cohort = 2 * point.cohort_size <= largest.cohort_size
        if not can_group and not can_cohort:
            break
        by_group = _growth(gradient_norm, point.group_size) if can_group else math.inf
        by_cohort = _growth(noise_multiplier, point.cohort_size) / 2 if can_cohort else math.inf
        group = by_group < by_cohort
        steps.append(Doubling(point, by_group, by_cohort, "group_size" if group else "cohort_size"))
        point = (
            Point(2 * point.group_size, point.cohort_size)
            if group
            else Point(point.group_size, 2 * point.cohort_size)
        )
    return point, tuple(steps)


def _growth(function: Callable[[int], float], value: int) -> float:
    before = function(value)
    return function(2 * value) / before if before > 0.0 else 1.0
