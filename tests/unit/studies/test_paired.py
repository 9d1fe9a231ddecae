"""Differences seed by seed, by hand."""

from __future__ import annotations

import math

import pytest

from experiments.studies.common.paired import against
from fedsim.report.grid_result import CellResult


def line(rule: str, losses: dict[int, float]) -> CellResult:
    return CellResult(
        name=rule,
        source="uls",
        strategy="uls",
        settings={"rule": rule},
        chosen={},
        seeds=tuple(losses),
        losses=tuple(losses.values()),
    )


def test_seeds_are_matched_and_what_diverged_is_left_out() -> None:
    lines = [
        line("a", {1: 5.0, 2: 4.0, 3: 3.0}),
        line("b", {2: 4.5, 1: 4.75}),
        line("c", {3: 3.5, 1: math.nan}),
        line("d", {7: 1.0}),
    ]
    assert against(lines, "rule", "a") == "seed by seed above a: b -0.2500 to +0.5000, c +0.5000"


@pytest.mark.parametrize("reference", ["a", "absent"])
def test_nothing_to_compare_says_nothing(reference: str) -> None:
    assert against([line("a", {1: 5.0})], "rule", reference) == ""
