"""The study of trade-offs: lines are compared seed by seed, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from fedsim.experiments.studies.charles_2024.tradeoffs import compare
from fedsim.planner.compare_strategies import StrategyComparison
from tests.unit.report.grid_samples import line

PLANNED = SimpleNamespace(
    uls=SimpleNamespace(noise=SimpleNamespace(group_size=4)),
    norms=lambda size: 1.0 / size,
    recommendation=SimpleNamespace(strategy="els", gradients_per_user=4.0, norm_ratio=2.0),
)


@pytest.mark.parametrize(
    ("seeds", "stopped", "gap"),
    [((0, 1), (), -0.3), ((0, 2), (), None), ((0, 1), ("uls,seed=1: the budget ended",), None)],
)
def test_only_the_same_seeds_are_paired(
    seeds: tuple[int, ...], stopped: tuple[str, ...], gap: float | None
) -> None:
    """Where each line lost another seed, both have as many."""
    uls, els = (line(name, losses=(2.0, 2.2), epsilon="4", budget="64") for name in ("uls", "els"))
    uls = uls.model_copy(update={"losses": (1.7, 1.9), "seeds": seeds, "stopped": stopped})
    found = compare(cast(StrategyComparison, PLANNED), uls, els)
    assert found.gap == (None if gap is None else pytest.approx(gap))
    assert found.better == ("" if gap is None else "uls")
