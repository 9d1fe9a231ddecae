"""Which accountant a name means, what it refuses, and the edges of ε and δ."""

from __future__ import annotations

import math

import pytest

from fedsim.accounting.accountants import (
    accountant_of,
    choose,
    delta,
    epsilon,
    epsilon_of_composition,
)
from fedsim.accounting.events import RoundCost
from fedsim.errors import ConfigError
from fedsim.sampling import FixedSizeSampling, PoissonSampling, Relation, Sampling, ShuffledSampling


def poisson(probability: float, noise_multiplier: float, units_per_user: int = 1) -> RoundCost:
    return RoundCost(PoissonSampling(probability), noise_multiplier, units_per_user)


@pytest.mark.parametrize(
    ("name", "units", "meant"), [(None, 1, "pld"), (None, 2, "mixture"), ("pld", 2, "mixture")]
)
def test_names(name: str | None, units: int, meant: str) -> None:
    accountant, relation = choose([poisson(0.1, 1.0, units)], name)
    assert accountant is accountant_of(meant)
    assert accountant.name == meant
    assert relation is Relation.ADD_OR_REMOVE
    assert choose([poisson(0.1, 1.0, units)], accountant.name, relation) == (accountant, relation)


@pytest.mark.parametrize(
    ("sampling", "name", "relation"),
    [
        (FixedSizeSampling(5, 50), "rdp", Relation.REPLACE),
        (ShuffledSampling(5, 50), "pld", Relation.ADD_OR_REMOVE),
    ],
)
def test_a_sampler_s_own(sampling: Sampling, name: str, relation: Relation) -> None:
    assert choose([RoundCost(sampling, 1.0)]) == (accountant_of(name), relation)


def test_a_relation_has_words() -> None:
    assert [relation.phrase for relation in Relation] == [
        "add-or-remove-one user",
        "zero-out-one user",
        "replace-one user",
        "fixed-graph (the neighbour has the same texts and owners, but every text that one "
        "owner co-owns is blank; who owns which text is public)",
    ]
    assert [relation.unit for relation in Relation] == ["user", "user", "user", "owner"]


def test_what_is_out_of_range_is_named() -> None:
    cost = poisson(0.1, 1.0)
    for wrong in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="delta = "):
            epsilon(cost, 1, wrong)
    with pytest.raises(ConfigError, match="epsilon = -1"):
        delta(cost, 1, -1.0)


def test_rounds_of_different_cost_add_up() -> None:
    one, two = poisson(0.1, 4.0), poisson(0.2, 6.0)
    for accountant in ("mixture", "rdp", "moments"):
        both = epsilon_of_composition([(one, 5), (two, 5)], 1e-5, accountant)
        assert both == pytest.approx(
            epsilon_of_composition([(two, 5), (one, 5)], 1e-5, accountant), rel=1e-9
        )
        assert both > max(epsilon(cost, 5, 1e-5, accountant) for cost in (one, two))
    assert epsilon_of_composition([(one, 5), (poisson(0.1, 0.0), 1)], 1e-5) == math.inf
    assert epsilon_of_composition([(one, 5), (poisson(0.1, 0.0), 0)], 1e-5) < 10.0
    assert epsilon_of_composition([(one, 0), (two, 0)], 1e-5) == 0.0


def test_units_of_different_numbers_need_the_mixture() -> None:
    costs = [(poisson(0.1, 6.0), 3), (poisson(0.1, 6.0, 2), 3)]
    assert epsilon_of_composition(costs, 1e-5) == epsilon_of_composition(costs, 1e-5, "mixture")
    with pytest.raises(ConfigError, match="2 units per user"):
        epsilon_of_composition(costs, 1e-5, "rdp")


def test_a_delta_below_the_pld_s_resolution_has_no_finite_epsilon() -> None:
    assert epsilon(poisson(0.1, 5.0), 10, 1e-24, "pld") == math.inf
