"""Sub-optimality of strategies on tables of losses that can be worked out by hand."""

from __future__ import annotations

import math

import pytest

from fedsim.experiments.studies.charles_2024.doubling_analysis import (
    DOUBLING,
    MAX_COHORT,
    MAX_GROUP,
    ORACLE,
    PRINTED,
    RANDOM,
    Excess,
    suboptimality,
)

GROUPS, COHORTS = (1, 2, 4), (32, 64, 128)
GRID = [(g, m) for g in GROUPS for m in COHORTS]


def excess(rows: list[Excess], strategy: str) -> dict[tuple[float, int], float]:
    return {(r.epsilon, r.budget): r.suboptimality for r in rows if r.strategy == strategy}


def mean(rows: list[Excess], strategy: str) -> float:
    values = excess(rows, strategy).values()
    return sum(values) / len(values)


def diverse(size: int) -> float:
    return 1 / math.sqrt(size)


def alike(_size: int) -> float:
    return 1.0


def test_by_hand() -> None:
    values = [[9.0, 6.0, 5.0], [7.0, 2.0, 4.0], [3.0, 8.0, 1.0]]  # rows: G, columns: M
    losses = {
        (1.0, g, m): values[i][j] for i, g in enumerate(GROUPS) for j, m in enumerate(COHORTS)
    }
    rows = suboptimality(losses, [alike], lambda _epsilon, _cohort: 1.0)
    # The oracle goes M, G, M, G; the best are 9, 6, 2, 4 and 1.
    assert excess(rows, ORACLE) == {(1.0, 32 << i): 0.0 for i in range(5)}
    # Alike gradients, constant σ: doubling M halves the noise. 9, 6, 5, 4, 1.
    assert [*excess(rows, DOUBLING).values()] == [0.0, 0.0, 3.0, 0.0, 0.0]
    assert excess(rows, DOUBLING) == excess(rows, MAX_COHORT)
    assert [*excess(rows, MAX_GROUP).values()] == [0.0, 1.0, 1.0, 4.0, 0.0]
    expected = [0.0, 0.5, (5 + 2 + 3) / 3 - 2, 2.0, 0.0]
    assert [*excess(rows, RANDOM).values()] == pytest.approx(expected)
    assert mean(rows, MAX_GROUP) == pytest.approx(6 / 5)


def test_doubling_finds_the_best_where_the_loss_is_the_noise() -> None:
    """If σ(M) L(G) / M is the loss the algorithm cannot err; printed, it never adds users."""

    def sigma(epsilon: float, cohort: int) -> float:
        return 1.0 + cohort**2 / (epsilon * 4096)

    losses = {
        (epsilon, g, m): sigma(epsilon, m) * diverse(g) / m
        for epsilon in (0.5, 4.0)
        for g, m in GRID
    }
    rows = suboptimality(losses, [diverse], sigma)
    assert max(excess(rows, DOUBLING).values()) == pytest.approx(0.0, abs=1e-12)
    assert excess(rows, PRINTED) == excess(rows, MAX_GROUP)
    assert mean(rows, PRINTED) > mean(rows, DOUBLING) + 5e-4
    assert mean(rows, DOUBLING) < mean(rows, RANDOM)


def test_the_oracle_is_local() -> None:
    losses = {(1.0, g, m): 10.0 - math.log2(g * m) for g, m in GRID}
    losses[1.0, 1, 64] -= 0.5  # lures it away from a valley of larger groups
    losses[1.0, 4, 32] = 0.0
    rows = suboptimality(losses, [alike], lambda _epsilon, _cohort: 1.0)
    assert excess(rows, ORACLE)[1.0, 128] == pytest.approx(3.0)


def test_several_estimates_are_averaged() -> None:
    losses = {(1.0, g, m): float(g) for g, m in GRID}
    sigma = {32: 1.0, 64: 1.8, 128: 3.6, 256: 7.2}
    rows = suboptimality(losses, [alike, diverse, diverse], lambda _e, m: sigma[m])
    # `diverse` doubles G at once: G = 2 where 1 is best, in two of three estimates.
    assert excess(rows, DOUBLING)[1.0, 64] == pytest.approx(2 / 3)
    assert excess(rows, MAX_COHORT)[1.0, 64] == 0.0
