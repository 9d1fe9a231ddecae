"""ε of random mixtures of Gaussians against dp_accounting alone (`make_mixture_reference`).

The reference was computed on a fixed grid by code that shares nothing with fedsim's but the
binomial law, so agreement means that the fast inversion, the adaptive grid and the tilted
composition lose nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.sampling import PoissonSampling
from tests.golden.make_mixture_reference import PATH

ROWS: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
NUM_CHUNKS = 10


def test_there_are_at_least_two_hundred_distinct_settings() -> None:
    settings = {json.dumps({**row, "epsilon": None}, sort_keys=True) for row in ROWS}
    assert len(settings) == len(ROWS) >= 200


def test_the_settings_are_spread_out() -> None:
    assert {row["units_per_user"] for row in ROWS} >= {1, 2, 3, 4, 8}
    assert max(row["units_per_user"] for row in ROWS) > 32
    assert min(row["rounds"] for row in ROWS) == 1
    assert max(row["rounds"] for row in ROWS) > 2000
    epsilons = [row["epsilon"] for row in ROWS]
    assert min(epsilons) < 0.01
    assert max(epsilons) > 100.0


@pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
def test_agrees_with_dp_accounting_and_is_never_below(chunk: int) -> None:
    for row in ROWS[chunk::NUM_CHUNKS]:
        cost = RoundCost(
            PoissonSampling(row["sampling_probability"]),
            row["noise_multiplier"],
            row["units_per_user"],
        )
        ours, reference = epsilon(cost, row["rounds"], row["delta"]), row["epsilon"]
        assert ours >= reference - 1e-6 * max(reference, 1.0), row
        assert ours <= reference * (1.0 + 1e-3), row
