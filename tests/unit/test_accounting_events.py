"""Round costs: their events, their ranges, their JSON; the binomial law; rounding up."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.accounting.events import RoundCost, binomial_probabilities
from fedsim.accounting.rounding import round_up
from fedsim.errors import ConfigError

costs = st.builds(
    RoundCost,
    st.floats(1e-6, 1.0),
    st.floats(0.0, 100.0),
    st.integers(1, 20),
)


def test_one_unit_is_a_poisson_sampled_gaussian() -> None:
    event = RoundCost(0.25, 1.5).event
    assert event == dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(1.5))


def test_several_units_are_a_mixture_with_binomial_sensitivity() -> None:
    event = RoundCost(0.5, 1.5, 2).event
    assert event.standard_deviation == 1.5
    assert list(event.sensitivities) == [0, 1, 2]
    assert list(event.sampling_probs) == pytest.approx([0.25, 0.5, 0.25], rel=1e-15)


@pytest.mark.parametrize("units", [1, 5])
def test_no_noise_is_no_privacy(units: int) -> None:
    assert RoundCost(0.5, 0.0, units).event == dp_accounting.NonPrivateDpEvent()


def test_composition_counts_rounds() -> None:
    cost = RoundCost(0.5, 1.0)
    assert cost.composed(7) == dp_accounting.SelfComposedDpEvent(cost.event, 7)
    assert cost.composed(0) == dp_accounting.NoOpDpEvent()
    with pytest.raises(ValueError, match="rounds = -1"):
        cost.composed(-1)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ((0.0, 1.0, 1), "sampling_probability"),
        ((1.01, 1.0, 1), "sampling_probability"),
        ((math.nan, 1.0, 1), "sampling_probability"),
        ((0.5, -0.1, 1), "noise_multiplier"),
        ((0.5, math.inf, 1), "noise_multiplier"),
        ((0.5, math.nan, 1), "noise_multiplier"),
        ((0.5, 1.0, 0), "units_per_user"),
        ((0.5, 1.0, 1.5), "units_per_user"),
    ],
)
def test_a_field_out_of_range_is_named(fields: tuple[float, float, int], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        RoundCost(*fields)


@given(costs)
def test_json_round_trip(cost: RoundCost) -> None:
    assert RoundCost.from_json(json.loads(json.dumps(cost.to_json()))) == cost


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {"sampling_probability": 0.5},
        {"sampling_probability": 0.5, "noise_multiplier": 1.0, "units_per_user": 1, "extra": 1},
        {"sampling_probability": "0.5", "noise_multiplier": 1.0, "units_per_user": 1},
        {"sampling_probability": True, "noise_multiplier": 1.0, "units_per_user": 1},
        {"sampling_probability": 2.0, "noise_multiplier": 1.0, "units_per_user": 1},
        {"sampling_probability": 0.5, "noise_multiplier": 1.0, "units_per_user": 1.5},
    ],
)
def test_malformed_json_is_a_config_error(data: object) -> None:
    with pytest.raises(ConfigError, match="round cost"):
        RoundCost.from_json(data)


@pytest.mark.parametrize(
    ("trials", "probability"), [(1, 0.3), (8, 0.05), (32, 0.01), (183, 0.002), (2000, 0.4)]
)
def test_binomial_terms_are_exact_into_the_tail(trials: int, probability: float) -> None:
    computed = binomial_probabilities(trials, probability)
    exact_p = Fraction(probability)
    for count in range(0, trials + 1, max(1, trials // 16)):
        exact = math.comb(trials, count) * exact_p**count * (1 - exact_p) ** (trials - count)
        if exact > Fraction(1, 10**290):  # below, floats lose digits by nature
            assert abs(Fraction(computed[count]) / exact - 1) < Fraction(1, 10**11)
    assert math.fsum(computed) == pytest.approx(1.0, abs=1e-15)


def test_binomial_of_a_sure_coin() -> None:
    assert binomial_probabilities(3, 1.0) == [0.0, 0.0, 0.0, 1.0]


@given(st.floats(1e-9, 1e9), st.integers(1, 8))
def test_rounding_up_never_lowers_and_hardly_raises(value: float, digits: int) -> None:
    rounded = round_up(value, digits)
    assert value <= rounded <= value * (1 + 1.01 * 10.0 ** (1 - digits))
    assert round_up(rounded, digits + 1) >= rounded


def test_rounding_up_keeps_what_is_not_finite() -> None:
    assert round_up(math.inf, 3) == math.inf
    assert round_up(1.2341, 4) == 1.235
    assert round_up(0.0, 4) == 0.0
