"""Estimate-and-Double on functions whose best point is known."""

from __future__ import annotations

import math

from fedsim.planner.doubling import Point, estimate_and_double

START, LARGEST = Point(1, 32), Point(256, 4096)


def _constant(_: int) -> float:
    return 1.0


def _orthogonal(group_size: int) -> float:
    return 1 / math.sqrt(group_size)


def test_alike_gradients_leave_nothing_to_group() -> None:
    point, steps = estimate_and_double(256, _constant, _constant, start=START, largest=LARGEST)
    assert point == Point(1, 256)
    assert [step.doubled for step in steps] == ["cohort_size"] * 3
    assert steps[0].group_factor == 1.0
    assert steps[0].cohort_factor == 0.5


def test_orthogonal_gradients_are_grouped_once_noise_grows_with_the_cohort() -> None:
    """σ ∝ M: amplification is all that there is, and a larger cohort buys no less noise."""
    point, _ = estimate_and_double(256, _orthogonal, float, start=START, largest=LARGEST)
    assert point == Point(8, 32)


def test_the_cohort_grows_until_its_noise_does_too() -> None:
    """σ constant to M = 128, ∝ M beyond: cohort first, then groups."""
    point, steps = estimate_and_double(
        1024, _orthogonal, lambda size: float(max(size, 128)), start=START, largest=LARGEST
    )
    assert point == Point(8, 128)
    assert [step.doubled for step in steps] == ["cohort_size"] * 2 + ["group_size"] * 3


def test_nothing_grows_beyond_what_is_there() -> None:
    point, _ = estimate_and_double(
        10_000, _orthogonal, _constant, start=START, largest=Point(4, 100)
    )
    assert point == Point(4, 64)


def test_a_start_that_suffices_is_kept() -> None:
    assert estimate_and_double(16, _constant, _constant, start=START, largest=LARGEST) == (
        START,
        (),
    )
