"""McMahan et al. 2018, Tables 1 and 2, to the last printed digit, and how loose they are."""

from __future__ import annotations

import pytest

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.experiments.studies.mcmahan_2018.moments_tables import (
    DELTA_EXPONENT,
    TABLE_1,
    TABLE_1_ROUNDS,
    TABLE_2,
    TABLE_2_DELTA,
    TABLE_2_NOISE_MULTIPLIER,
    TABLE_2_ROUNDS,
    Table1Row,
    Table2Row,
)
from fedsim.sampling import PoissonSampling

# Asked of the PLD too. Those of a few hundred rounds at q = 1e-6 need grids of 1e-7 nats: most of
# a minute each.
TIGHT = TABLE_1_ROUNDS[::2]
SLOW = {(10**9, 100)}


def as_printed(value: float, printed: str) -> str:
    """Write a value with as many decimals as the printed one."""
    return f"{value:.{len(printed.partition('.')[2])}f}"


def test_the_tables_are_whole() -> None:
    assert len([text for row in TABLE_1 for text in row.epsilons]) == 42
    assert len({(row.users, row.cohort, row.noise_multiplier) for row in TABLE_1}) == 6
    assert len({(row.users, row.cohort) for row in TABLE_2}) == len(TABLE_2) == 6


@pytest.mark.parametrize(
    "row", TABLE_1, ids=lambda row: f"{row.users:.0e}-{row.cohort}-{row.noise_multiplier}"
)
def test_table_1(row: Table1Row) -> None:
    cost = RoundCost(PoissonSampling(row.cohort / row.users), row.noise_multiplier)
    delta = row.users**-DELTA_EXPONENT
    for rounds, printed in zip(TABLE_1_ROUNDS, row.epsilons, strict=True):
        value = epsilon(cost, rounds, delta, "moments")
        assert as_printed(value, printed) == printed, rounds
        if rounds in TIGHT and (row.users, rounds) not in SLOW:
            assert 0.0 <= epsilon(cost, rounds, delta, "pld") < value, rounds


@pytest.mark.parametrize("row", TABLE_2, ids=lambda row: f"{row.users}-{row.cohort}")
def test_table_2(row: Table2Row) -> None:
    assert row.clip_norm / row.noise_stddev == pytest.approx(row.cohort, rel=1e-3)  # z = 1
    cost = RoundCost(PoissonSampling(row.cohort / row.users), TABLE_2_NOISE_MULTIPLIER)
    value = epsilon(cost, TABLE_2_ROUNDS, TABLE_2_DELTA, "moments")
    assert as_printed(value, row.epsilon) == row.epsilon
    assert 0.0 < epsilon(cost, TABLE_2_ROUNDS, TABLE_2_DELTA, "pld") < value
