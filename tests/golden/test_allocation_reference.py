"""ε of balanced sampling, in 100 random settings, between Monte Carlo and what others have proved.

Above a lower bound of our own on δ, and not above the best upper bound on ε that is published
(`make_allocation_reference`).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.methods import random_allocation as module
from fedsim.sampling import BalancedSampling
from tests.golden.make_allocation_reference import NUM_SETTINGS, PATH, setting
from tests.unit.accounting.test_random_allocation import lower

ROWS: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
NUM_CHUNKS = 10
NORMALS = 900_000  # of Monte Carlo, a setting
FINENESS = 1 / 16


def test_the_settings_are_those_that_were_drawn() -> None:
    assert len(ROWS) == NUM_SETTINGS == 100
    for number, row in enumerate(ROWS):
        # The last bit of an exponential depends on the processor.
        drawn = {
            key: pytest.approx(value, rel=1e-15, abs=0.0) for key, value in setting(number).items()
        }
        assert {key: row[key] for key in row if key != "upper_bound"} == drawn


@pytest.mark.parametrize("chunk", range(NUM_CHUNKS))
def test_not_above_what_is_published_and_never_below_monte_carlo(chunk: int) -> None:
    sharp = 0
    for row in ROWS[chunk::NUM_CHUNKS]:
        passes, noise = row["participations"], row["noise_multiplier"]
        sampling = BalancedSampling(passes * row["pass_rounds"], passes)
        cost = RoundCost(sampling, noise)
        assert epsilon(cost, sampling.rounds, row["delta"]) <= 0.96 * row["upper_bound"], row
        sides = module.composed(((cost, sampling.rounds),), FINENESS).directions
        samples = max(500, min(100_000, NORMALS // sampling.rounds))
        for at in (0.0, epsilon(cost, sampling.rounds, 0.1)):
            found = lower(sampling.rounds, passes, noise, at, samples)
            for side, least in zip(sides, found, strict=True):
                assert side.delta(at) >= least, (row, at)
                sharp += least > 0.5 * side.delta(at)
    assert sharp > 10  # of 40: such a lower bound says something
