"""The adaptive grid of PLDs: never below what a much finer grid says, and hardly above it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedsim.accounting.accountants import delta, epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.methods.pld import WIDTH, composed
from fedsim.sampling import PoissonSampling, Relation, TruncatedPoissonSampling

# (probability, noise multiplier, units per user, rounds, δ)
Regime = tuple[float, float, int, int, float]
REGIMES: dict[str, Regime] = {
    "many-tiny-rounds": (1e-5, 1.0, 1, 10**6, 1e-6),
    "many-small-rounds": (1e-3, 10.0, 1, 10**6, 1e-12),
    "huge-epsilon": (0.5, 1.0, 1, 10**6, 1e-12),
    "large-epsilon": (0.5, 1.0, 1, 1000, 1e-12),
    "huge-mixture": (0.01, 1.0, 512, 1000, 1e-6),
    "large-group": (0.01, 8.0, 512, 100, 1e-12),
    "single-round": (0.02, 0.8, 4, 1, 1e-6),
    "rare-events": (1e-5, 1.0, 8, 100, 1e-6),
    "little-noise": (1e-3, 0.3, 1, 100, 1e-12),
    "everyone": (1.0, 20.0, 1, 100, 1e-9),
    "charles": (0.01, 2.0, 32, 2000, 1e-6),
    "tiny-mixture": (1e-6, 100.0, 32, 10**5, 1e-9),
}
FINE = {  # powers of four of the width compared with: well below what the adaptive grid ends at
    "many-tiny-rounds": -4,
    "many-small-rounds": -3,
    "huge-epsilon": 2,
    "large-epsilon": 1,
    "huge-mixture": 4,
    "large-group": 1,
    "single-round": 0,
    "rare-events": -2,
    "little-noise": 1,
    "everyone": -1,
    "charles": 1,
    "tiny-mixture": -8,
}


@pytest.mark.parametrize(("name", "regime"), REGIMES.items(), ids=REGIMES)
def test_never_below_a_fine_grid_and_hardly_above(name: str, regime: Regime) -> None:
    probability, noise, units, rounds, target = regime
    width = WIDTH * 4.0 ** FINE[name]
    cost = RoundCost(PoissonSampling(probability), noise, units)
    fine = composed(((cost, rounds),), Relation.ADD_OR_REMOVE, width)
    spent, least = epsilon(cost, rounds, target), float(fine.get_epsilon_for_delta(target))
    assert least * (1.0 - 1e-9) <= spent <= least * (1.0 + 1e-3)

    at = max(0.7 * least, 1e-3)
    failing, least_failing = delta(cost, rounds, at), float(fine.get_delta_for_epsilon(at))
    assert least_failing * (1.0 - 1e-9) <= failing
    if least_failing > 1e-15:  # of less the mass that grids leave out is a part
        assert failing <= least_failing * (1.0 + 1e-2)
    if name != "huge-epsilon":
        # δ at ε is δ: both are upper bounds and off by up to 1e-3, so δ is asked around ε.
        assert delta(cost, rounds, spent * (1.0 + 3e-3)) <= target * (1.0 + 1e-9)
        assert delta(cost, rounds, spent * (1.0 - 2e-3)) >= target


@pytest.mark.parametrize("probability", [5e-17, 2e-12, 5e-10])
@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE, Relation.REPLACE])
@pytest.mark.parametrize("cap", [None, 5, 10**6])
def test_a_rate_that_a_float_hardly_tells_from_none_is_no_less_than_an_attack_shows(
    probability: float, relation: Relation, cap: int | None
) -> None:
    """Who looks at the largest of all rounds is right that often, by a formula without 1 - q."""
    noise, rounds = 0.1, 1000
    coins = (
        PoissonSampling(probability)
        if cap is None
        else TruncatedPoissonSampling(probability, cap, 10**6)
    )
    cuts = np.linspace(1.5 * noise, 14.0 * noise + 2.0, 4000)
    without = stats.norm.sf(cuts / noise)
    there = without + probability * (stats.norm.sf((cuts - 1.0) / noise) - without)
    if relation is Relation.REPLACE:
        without += probability * (stats.norm.sf((cuts + 1.0) / noise) - without)
    for level in (1.0, 9.0):
        found, wrong = (-np.expm1(rounds * np.log1p(-rates)) for rates in (there, without))
        shown = float(np.max(found - math.exp(level) * wrong))
        assert shown > 0.1 * rounds * probability
        assert delta(RoundCost(coins, noise), rounds, level, relation=relation) >= shown
