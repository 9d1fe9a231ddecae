"""The analysis of estimate-and-double on texts: which lines it takes, and its intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsim.errors import ConfigError
from fedsim.experiments.studies.charles_2024.doubling_analysis import (
    DOUBLING,
    MAX_COHORT,
    MAX_GROUP,
    ORACLE,
    RANDOM,
    STRATEGIES,
    at_epsilon,
)
from fedsim.experiments.studies.charles_2024.doubling_picture import chosen, draw, means
from fedsim.experiments.studies.charles_2024.estimate_and_double_text import (
    compare,
    complete,
    grid,
    standard_errors,
)
from fedsim.experiments.studies.common.options import Options
from fedsim.report.grid_result import GridResult
from tests.unit.report.grid_samples import line

SPLITS = [(1, 16), (1, 32), (1, 64), (2, 16), (2, 32), (4, 16)]


def measured(
    losses: dict[tuple[int, int], list[float]], epsilons: tuple[str, ...] = ("1", "8")
) -> GridResult:
    lines = [
        line(losses=of, epsilon=epsilon, group_size=str(size), cohort_size=str(cohort))
        for epsilon in epsilons
        for (size, cohort), of in losses.items()
    ]
    return GridResult(lines=tuple(lines), seeds=(0, 1))


def alike(_size: int) -> float:
    return 1.0


def by_noise(spread: float) -> GridResult:
    """Losses that fall with M: two seeds at a distance, and a share of `spread` that is not."""
    signs = dict(zip(SPLITS, (1, -1, 1, -1, 1, -1), strict=True))
    return measured(
        {
            (g, m): [5.0 + 1.6 / m + signs[g, m] * spread, 5.5 + 1.6 / m - signs[g, m] * spread]
            for g, m in SPLITS
        }
    )


def test_strategies_on_the_mean_losses() -> None:
    task = compare(by_noise(0.0), alike)
    intervals = {name: task.interval(chosen(name)) for name in STRATEGIES}
    # Beyond the best, M = B: 0 at B = 16; at B = 32 and 64 what G costs.
    costs = [0.0, 1.6 / 16 - 1.6 / 32, 1.6 / 16 - 1.6 / 64]
    assert intervals[MAX_GROUP].value == pytest.approx(sum(costs) / 3)
    assert intervals[RANDOM].value == pytest.approx((0 + 0.05 / 2 + (0.075 + 0.025) / 3) / 3)
    for name in (ORACLE, DOUBLING, MAX_COHORT):
        assert intervals[name].value == pytest.approx(0.0, abs=1e-12)
    assert len(task.losses) == 2 * len(SPLITS)


def test_what_a_seed_shares_is_no_spread() -> None:
    """The seeds are half a nat apart, all of which is theirs; what is left is pooled."""
    for spread in (0.0, 0.02):
        by_seed = {
            (float(item.settings["epsilon"]), n, 1): np.array(item.losses)
            for n, item in enumerate(by_noise(spread).lines)
        }
        # Residuals ±spread in all six by two entries, five degrees of freedom, two seeds.
        wanted = math.sqrt(12 * spread**2 / 5 / 2)
        assert standard_errors(by_seed) == pytest.approx({1.0: wanted, 8.0: wanted})


def test_the_interval_is_as_wide_as_the_seeds_differ() -> None:
    def width(measurement: GridResult) -> float:
        interval = compare(measurement, alike).interval(chosen(MAX_GROUP))
        return interval.high - interval.low

    once = measured({split: [5.0 + 1.6 / split[1]] for split in SPLITS})
    assert width(once) == pytest.approx(0.0, abs=1e-12)
    assert 0.0 < 100 * width(by_noise(0.0005)) < width(by_noise(0.5))
    line_of_means = means(compare(once, alike))
    assert line_of_means.startswith(
        "Shakespeare, mean sub-optimality: greedy local oracle 0.0000 ["
    )
    assert f"max group size {sum((0.05, 0.075)) / 3:.4f} [" in line_of_means


def test_budgets_from_a_diverged_run_on_are_left_out() -> None:
    losses = {split: [5.0, 5.1] for split in SPLITS}
    losses[2, 16] = [5.0, math.nan]
    assert {key[1:] for key in complete(measured(losses))} == {(1, 16)}
    losses[2, 16], losses[4, 16] = [5.0, 5.1], []
    usable = complete(measured(losses))
    assert {key[1:] for key in usable} == {(1, 16), (1, 32), (2, 16)}
    task = compare(measured(losses), alike)
    assert sorted({row.budget for row in task.rows}) == [16, 32]
    draw([task], "terms")  # a rectangle of three
    losses[1, 16] = []
    with pytest.raises(ConfigError, match="no finite loss"):
        complete(measured(losses))


@pytest.mark.parametrize("quick", [False, True])
def test_the_grid_has_every_split_of_its_budgets(quick: bool) -> None:
    cells = [*grid(quick, Options())]
    keys = [
        (float(of["epsilon"]), int(of["group_size"]), int(of["cohort_size"]))
        for of in (dict(cell.settings) for cell in cells)
    ]
    assert len({*keys}) == len(keys)
    for epsilon in {key[0] for key in keys}:
        at_epsilon(dict.fromkeys(keys, 1.0), epsilon)  # which refuses gaps
    for cell, (epsilon, size, cohort) in zip(cells, keys, strict=True):
        strategy = cell.config.strategy
        assert (strategy.group_size, strategy.expected_users) == (size, cohort)
        assert cell.config.privacy.epsilon == epsilon
