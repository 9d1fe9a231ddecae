"""What every accountant owes, for each sampler and relation: an answer that behaves, or a reason.

`SUPPORTED` is the whole list of what is claimed to be proved. An accountant that suddenly
answers for one more triple fails here until somebody adds it, with the proof in mind.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from fedsim.accounting import accountants
from fedsim.accounting.accountants import choose
from fedsim.accounting.events import RoundCost
from fedsim.errors import ConfigError
from fedsim.experiments.studies.chua_2024.asi_liu.sampling import ConcentratedSampling
from fedsim.registry import names
from fedsim.sampling import (
    BalancedSampling,
    CyclicSampling,
    FixedSizeSampling,
    PoissonSampling,
    Relation,
    Sampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
)

# Several tests ask the same.
epsilon, delta = functools.cache(accountants.epsilon), functools.cache(accountants.delta)

POPULATION = 1000
SAMPLINGS: dict[str, Callable[[float], Sampling]] = {
    "poisson": PoissonSampling,
    "truncated-poisson": lambda p: TruncatedPoissonSampling(p, 65, POPULATION),
    "fixed-size": lambda p: FixedSizeSampling(round(p * POPULATION), POPULATION),
    "shuffled": lambda p: ShuffledSampling(round(p * POPULATION), POPULATION),
    "balanced": lambda p: BalancedSampling(40, 1 if p < 0.03 else 2 if p < 0.05 else 4),
    "cyclic": lambda p: CyclicSampling(40, 8, min(1.0, 8 * p)),
    "concentrated": lambda _: ConcentratedSampling(POPULATION, 4.0, 40),
}
UNITS = (1, 4)
ALL = frozenset(Relation)
ONE_SIDED = ALL - {Relation.REPLACE}

SUPPORTED: dict[tuple[str, str, int], frozenset[Relation]] = {
    **{("pld", kind, 1): ALL for kind in ("poisson", "shuffled", "truncated-poisson", "cyclic")},
    # of one unit the mixture is the same PLD; and "pld" of several units means the mixture
    **{
        ("mixture", kind, 1): ALL for kind in ("poisson", "shuffled", "truncated-poisson", "cyclic")
    },
    **{
        (name, kind, 4): ONE_SIDED
        for name in ("mixture", "pld")
        for kind in ("poisson", "shuffled")
    },
    # units in one group, which units of several owners cannot be
    **{(name, "cyclic", 4): ONE_SIDED - {Relation.FIXED_GRAPH} for name in ("mixture", "pld")},
    **{("rdp", kind, 1): ONE_SIDED for kind in ("poisson", "shuffled", "cyclic")},
    ("rdp", "fixed-size", 1): frozenset({Relation.REPLACE}),
    **{("moments", kind, 1): ONE_SIDED for kind in ("poisson", "shuffled")},
    ("random-allocation", "balanced", 1): ONE_SIDED,
    ("above-threshold", "concentrated", 1): frozenset({Relation.REPLACE}),
    **{
        ("group-privacy", kind, units): ONE_SIDED
        for kind in ("poisson", "shuffled")
        for units in UNITS
    },
}
ALIASES = [("mixture", 1), ("pld", 4)]  # of "pld" and "mixture": the same code, once is enough
ROWS = [
    (name, kind, units, relation)
    for (name, kind, units), relations in SUPPORTED.items()
    for relation in (Relation.ADD_OR_REMOVE, Relation.REPLACE)
    if relation in relations and (name, units) not in ALIASES
]
TWINS = (Relation.ZERO_OUT, Relation.FIXED_GRAPH)  # of add-or-remove-one: the same pairs of laws
TRIPLES = list(itertools.product(names("accountants"), SAMPLINGS, UNITS, Relation))

every_row = pytest.mark.parametrize(("name", "kind", "units", "relation"), ROWS)

NOISE, ROUNDS, DELTA, PROBABILITY = 3.0, 40, 1e-5, 0.03


def cost_of(
    kind: str, units: int, noise: float = NOISE, probability: float = PROBABILITY
) -> RoundCost:
    return RoundCost(SAMPLINGS[kind](probability), noise, units)


def is_increasing(values: list[float]) -> bool:
    return all(low < high for low, high in itertools.pairwise(values))


def test_every_accountant_and_every_sampler_has_a_row() -> None:
    assert {name for name, *_ in ROWS} == set(names("accountants"))
    assert {kind for _, kind, *_ in ROWS} == set(SAMPLINGS)


@pytest.mark.parametrize(("name", "kind", "units", "relation"), TRIPLES)
def test_exactly_what_is_listed_is_supported(
    name: str, kind: str, units: int, relation: Relation
) -> None:
    if relation in SUPPORTED.get((name, kind, units), frozenset()):
        accountant, meant = choose([cost_of(kind, units)], name, relation)
        assert accountant.name == ("mixture" if name == "pld" and units > 1 else name)
        assert meant is relation
        return
    if units > 1 and kind not in ("poisson", "shuffled", "cyclic"):
        with pytest.raises(ValueError, match="no proved cost"):
            cost_of(kind, units)
        return
    cost = cost_of(kind, units)
    with pytest.raises(ConfigError, match=rf"relation = '{relation.value}': .{{20}}"):
        choose([cost], name, relation)
    with pytest.raises(ConfigError, match="accountant = "):
        epsilon(cost, ROUNDS, DELTA, name, relation)
    with pytest.raises(ConfigError, match="accountant = "):
        delta(cost, ROUNDS, 1.0, name, relation)


@every_row
def test_monotone(name: str, kind: str, units: int, relation: Relation) -> None:
    def spent(cost: RoundCost, rounds: int = ROUNDS, target: float = DELTA) -> float:
        return epsilon(cost, rounds, target, name, relation)

    cost = cost_of(kind, units)
    middle, few = spent(cost), spent(cost, rounds=10)  # one cost first: its PLDs are at hand
    assert 0.0 < middle < math.inf
    whole = cost.run_rounds is not None  # all of its rounds, or none
    assert few == middle if whole else few < middle
    assert middle < spent(cost, rounds=200)
    assert is_increasing([spent(cost, target=1e-4), middle, spent(cost, target=1e-7)])
    less_noise, more_noise = (spent(cost_of(kind, units, noise=n)) for n in (2.0, 5.0))
    assert is_increasing([more_noise, middle, less_noise])
    rates = [spent(cost_of(kind, units, probability=p)) for p in (0.01, 0.05)]
    if kind != "concentrated":  # which takes everybody
        assert is_increasing([rates[0], middle, rates[1]])


@pytest.mark.parametrize(
    ("name", "kind", "units"), [row[:3] for row in ROWS if row[3] is Relation.ADD_OR_REMOVE]
)
def test_zeroing_out_costs_what_adding_does(name: str, kind: str, units: int) -> None:
    """Of truncated sampling but for what its grids round."""
    cost, slack = cost_of(kind, units), 1e-3 if kind == "truncated-poisson" else 0.0
    added = epsilon(cost, ROUNDS, DELTA, name, Relation.ADD_OR_REMOVE)
    failing = delta(cost, ROUNDS, added, name, Relation.ADD_OR_REMOVE)
    for relation in SUPPORTED[name, kind, units].intersection(TWINS):
        same = epsilon(cost, ROUNDS, DELTA, name, relation)
        assert same == pytest.approx(added, rel=slack, abs=0.0)
        same = delta(cost, ROUNDS, added, name, relation)
        assert same == pytest.approx(failing, rel=slack, abs=0.0)


@every_row
def test_a_cost_that_is_listed_twice_is_one_with_all_its_rounds(
    name: str, kind: str, units: int, relation: Relation
) -> None:
    cost = cost_of(kind, units)
    listed = [(cost, ROUNDS // 2), (cost, ROUNDS - ROUNDS // 2)]
    spent = accountants.epsilon_of_composition(listed, DELTA, name, relation)
    assert spent == epsilon(cost, ROUNDS, DELTA, name, relation)
    profile = accountants.profile_of_composition(listed, DELTA, name, relation)
    once = accountants.profile_of_composition([(cost, ROUNDS)], DELTA, name, relation)
    assert profile(np.array([spent])) == once(np.array([spent]))


@pytest.mark.parametrize("rounds", [math.nan, 0.5, -1])
def test_rounds_that_are_no_number_of_rounds_are_refused(rounds: float) -> None:
    for kind in ("poisson", "balanced"):
        with pytest.raises(ConfigError, match=rf"rounds = {rounds}: give an integer >= 0"):
            accountants.epsilon(cost_of(kind, 1), rounds, DELTA)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=rf"rounds = {rounds}: give an integer >= 0"):
            accountants.delta(cost_of(kind, 1), rounds, 1.0)  # type: ignore[arg-type]


@every_row
def test_edges(name: str, kind: str, units: int, relation: Relation) -> None:
    cost, silent = cost_of(kind, units), cost_of(kind, units, noise=0.0)
    assert epsilon(cost, 0, DELTA, name, relation) == 0.0
    assert delta(cost, 0, 1.0, name, relation) == 0.0
    assert epsilon(silent, 0, DELTA, name, relation) == 0.0
    assert epsilon(silent, 3, DELTA, name, relation) == math.inf
    assert delta(silent, 3, 1.0, name, relation) == 1.0


@every_row
def test_a_profile_is_delta_at_each_epsilon(
    name: str, kind: str, units: int, relation: Relation
) -> None:
    cost = cost_of(kind, units)
    profile = accountants.profile_of_composition([(cost, ROUNDS)], DELTA, name, relation)
    at = np.linspace(0.0, 1.5 * epsilon(cost, ROUNDS, DELTA, name, relation), 4)
    exact = [delta(cost, ROUNDS, one, name, relation) for one in at.tolist()]
    assert profile(at).tolist() == pytest.approx(exact, rel=5e-3)
    silent = accountants.profile_of_composition([(cost_of(kind, units, noise=0.0), 1)], DELTA)
    assert (silent(at) == 1.0).all()


@every_row
def test_epsilon_and_delta_answer_each_other(
    name: str, kind: str, units: int, relation: Relation
) -> None:
    cost = cost_of(kind, units)
    spent = epsilon(cost, ROUNDS, DELTA, name, relation)
    # of the fixed orders of "rdp" another one may be best for δ; both are bounds
    slack = 2e-2 if name == "rdp" else 2e-3
    assert delta(cost, ROUNDS, spent * (1.0 + slack), name, relation) <= DELTA
    again = epsilon(cost, ROUNDS, delta(cost, ROUNDS, spent, name, relation), name, relation)
    assert again == pytest.approx(spent, rel=slack)
    assert delta(cost, ROUNDS, 2.0 * spent, name, relation) < DELTA


@pytest.mark.parametrize(
    ("name", "kind", "units", "relation"),
    [row for row in ROWS if row[0] in ("rdp", "moments", "group-privacy") and row[1] == "poisson"],
)
def test_never_below_the_tight_one(name: str, kind: str, units: int, relation: Relation) -> None:
    cost = cost_of(kind, units)
    for rounds in (1, ROUNDS, 1000):
        tight = epsilon(cost, rounds, DELTA, None, relation)
        assert epsilon(cost, rounds, DELTA, name, relation) >= tight * (1.0 - 1e-3)


@pytest.mark.parametrize("kind", ["poisson", "shuffled", "truncated-poisson"])
def test_replacing_costs_more_than_adding(kind: str) -> None:
    cost = cost_of(kind, 1)
    replace, add, zero = (
        epsilon(cost, ROUNDS, DELTA, "pld", relation)
        for relation in (Relation.REPLACE, Relation.ADD_OR_REMOVE, Relation.ZERO_OUT)
    )
    assert replace > 1.1 * add
    assert zero <= add * (1.0 + 1e-3)


@pytest.mark.parametrize(("name", "units"), ALIASES)
def test_pld_and_mixture_are_one_accountant(name: str, units: int) -> None:
    cost = cost_of("poisson", units)
    other = {"pld": "mixture", "mixture": "pld"}[name]
    assert epsilon(cost, ROUNDS, DELTA, name) == epsilon(cost, ROUNDS, DELTA, other)


def test_several_units_cost_more_than_one() -> None:
    for name in ("mixture", "group-privacy"):
        one, four = (epsilon(cost_of("poisson", units), ROUNDS, DELTA, name) for units in UNITS)
        assert four > 2.0 * one
