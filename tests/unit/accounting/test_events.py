"""Round costs: their events, their ranges, their JSON; the binomial law; rounding up."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import dp_accounting
import pytest
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st

from fedsim.accounting.events import RoundCost
from fedsim.accounting.rounding import round_up
from fedsim.errors import ConfigError
from fedsim.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
    binomial_probabilities,
)

probabilities = st.floats(1e-6, 1.0)
populations = st.integers(20, 10**9)
sizes = st.integers(1, 20)
several_units: st.SearchStrategy[Sampling] = st.one_of(
    st.builds(PoissonSampling, probabilities), st.builds(ShuffledSampling, sizes, populations)
)
one_unit: st.SearchStrategy[Sampling] = st.one_of(
    st.builds(TruncatedPoissonSampling, probabilities, sizes, populations),
    st.builds(FixedSizeSampling, sizes, populations),
)
noises = st.floats(0.0, 100.0)
costs = st.one_of(
    st.builds(RoundCost, several_units, noises, st.integers(1, 20)),
    st.builds(RoundCost, one_unit, noises),
)


@pytest.mark.parametrize("sampling", [PoissonSampling(0.25), ShuffledSampling(25, 100)])
def test_one_unit_is_a_poisson_sampled_gaussian(sampling: Sampling) -> None:
    event = RoundCost(sampling, 1.5).event
    assert event == dp_accounting.PoissonSampledDpEvent(0.25, dp_accounting.GaussianDpEvent(1.5))


@pytest.mark.parametrize("sampling", [PoissonSampling(0.5), ShuffledSampling(50, 100)])
def test_several_units_are_a_mixture_with_binomial_sensitivity(sampling: Sampling) -> None:
    event = RoundCost(sampling, 1.5, 2).event
    assert event.standard_deviation == 1.5
    assert list(event.sensitivities) == [0, 1, 2]
    assert list(event.sampling_probs) == pytest.approx([0.25, 0.5, 0.25], rel=1e-15)


def test_a_fixed_size_is_sampling_without_replacement_of_what_replacing_moves() -> None:
    """A replaced user moves the sum by twice what one can add: half the noise multiplier."""
    event = RoundCost(FixedSizeSampling(30, 100), 1.5).event
    assert event == dp_accounting.SampledWithoutReplacementDpEvent(
        100, 30, dp_accounting.GaussianDpEvent(0.75)
    )


def test_a_cap_is_the_truncated_event_of_the_declared_population() -> None:
    event = RoundCost(TruncatedPoissonSampling(0.25, 30, 100), 1.5).event
    assert event == dp_event.TruncatedSubsampledGaussianDpEvent(
        dataset_size=100, sampling_probability=0.25, truncated_batch_size=30, noise_multiplier=1.5
    )


def test_composition_counts_rounds() -> None:
    cost = RoundCost(PoissonSampling(0.5), 1.0)
    assert cost.composed(7) == dp_accounting.SelfComposedDpEvent(cost.event, 7)
    assert cost.composed(0) == dp_accounting.NoOpDpEvent()
    with pytest.raises(ValueError, match="rounds = -1"):
        cost.composed(-1)


@pytest.mark.parametrize(
    ("noise", "units", "name"),
    [
        (-0.1, 1, "noise_multiplier"),
        (math.inf, 1, "noise_multiplier"),
        (math.nan, 1, "noise_multiplier"),
        (1.0, 0, "units_per_user"),
        (1.0, 1.5, "units_per_user"),
        (1.0, True, "units_per_user"),
    ],
)
def test_a_field_out_of_range_is_named(noise: float, units: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = "):
        RoundCost(PoissonSampling(0.5), noise, units)


@pytest.mark.parametrize("probability", [0.0, -0.1, 1.01, math.nan])
def test_a_probability_out_of_range_is_named(probability: float) -> None:
    with pytest.raises(ValueError, match="sampling_probability = "):
        PoissonSampling(probability)
    with pytest.raises(ValueError, match="sampling_probability = "):
        TruncatedPoissonSampling(probability, 1, 10)


@given(costs)
def test_json_round_trip(cost: RoundCost) -> None:
    assert RoundCost.from_json(json.loads(json.dumps(cost.to_json()))) == cost


POISSON = {"kind": "poisson", "probability": 0.5}


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"kind": "bernoulli", "probability": 0.5}, "fixed-size.*poisson.*shuffled"),
        (None, "round cost = "),
        ({}, "round cost = .*'kind'"),
        ({"kind": {}}, "round cost = "),
        ({"kind": None}, "round cost = "),
        ({"kind": "poisson"}, "missing 1 required"),
        ({**POISSON, "size": 5}, "unexpected keyword"),
        ({"kind": "poisson", "probability": "0.5"}, "not supported between"),
    ],
)
def test_a_malformed_sampling_is_a_config_error(sampling: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RoundCost.from_json({"sampling": sampling, "noise_multiplier": 1.0, "units_per_user": 1})


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


@given(st.floats(1e-9, 1e9), st.integers(1, 8))
def test_rounding_up_never_lowers_and_hardly_raises(value: float, digits: int) -> None:
    rounded = round_up(value, digits)
    assert value <= rounded <= value * (1 + 1.01 * 10.0 ** (1 - digits))
    assert round_up(rounded, digits + 1) >= rounded


def test_rounding_up_keeps_what_is_not_finite() -> None:
    assert round_up(math.inf, 3) == math.inf
    assert round_up(1.2341, 4) == 1.235
    assert round_up(0.0, 4) == 0.0
