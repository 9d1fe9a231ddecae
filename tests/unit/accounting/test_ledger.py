"""The ledger charges each draw once, adds up what was charged, and survives a file."""

from __future__ import annotations

import json
import math
from collections import Counter

import dp_accounting
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.errors import ConfigError
from fedsim.sampling import PoissonSampling

Items = list[tuple[int, tuple[str, RoundCost]]]
A, B = RoundCost(PoissonSampling(0.1), 4.0), RoundCost(PoissonSampling(0.2), 6.0)
# One cost a seed, so that seeded releases never contradict each other.
charges = st.lists(
    st.tuples(st.integers(0, 6), st.sampled_from([("seeded:0", A), ("seeded:1", B), ("secure", A)]))
)


def charged(items: Items) -> Ledger:
    ledger = Ledger()
    for round_, (release, cost) in items:
        ledger = ledger.charge(round_, cost, release)
    return ledger


@given(charges, charges)
def test_replaying_seeded_charges_changes_nothing(items: Items, more: Items) -> None:
    ledger = charged([*items, *more])
    for round_, (release, cost) in items:
        if release != "secure":
            assert ledger.charge(round_, cost, release) is ledger


@given(charges)
def test_items_hold_every_release_and_json_keeps_them(items: Items) -> None:
    ledger = charged(items)
    seeded = {(round_, *kind) for round_, kind in items if kind[0] != "secure"}
    secure = [(round_, *kind) for round_, kind in items if kind[0] == "secure"]
    assert ledger.num_releases == len(seeded) + len(secure)
    one_by_one = [
        (round_, item.release, item.cost)
        for item in ledger.items
        for round_ in range(item.first_round, item.end)
    ]
    assert Counter(one_by_one) == Counter([*seeded, *secure])
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))) == ledger


def test_a_long_run_is_one_item() -> None:
    ledger = Ledger()
    for round_ in range(500):
        ledger = ledger.charge(round_, A, "seeded:0")
    (run,) = ledger.to_json()["releases"]
    assert (run["first_round"], run["num_rounds"]) == (0, 500)
    assert ledger.costs == [(A, 500)]


def test_rounds_that_were_lost_and_done_again_nest() -> None:
    ledger = charged([(round_, ("secure", A)) for round_ in [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 4]])
    spans = [(item.first_round, item.end) for item in ledger.items]
    assert spans == [(0, 7), (2, 5), (4, 5)]
    assert ledger.costs == [(A, 11)]


def test_a_seeded_round_at_another_cost_is_refused() -> None:
    ledger = Ledger().charge(3, A, "seeded:0")
    with pytest.raises(ValueError, match=r"round 3, release 'seeded:0'.*another seed"):
        ledger.charge(3, B, "seeded:0")
    assert ledger.charge(3, B, "seeded:1").num_releases == 2
    assert ledger.charge(4, B, "seeded:0").num_releases == 2
    with pytest.raises(ValueError, match="round = -1"):
        ledger.charge(-1, A, "seeded:0")


def test_epsilon_is_that_of_the_event() -> None:
    ledger = charged([(0, ("secure", A)), (1, ("secure", A)), (2, ("secure", B))])
    reference = dp_accounting.pld.PLDAccountant()
    reference.compose(dp_accounting.ComposedDpEvent([A.composed(2), B.composed(1)]))
    exact = reference.get_epsilon(1e-5)
    assert exact * (1 - 1e-6) <= ledger.epsilon(1e-5, "mixture") <= exact * (1 + 1e-3)
    two = charged([(0, ("secure", A)), (0, ("secure", A))])
    assert two.epsilon(1e-5) == epsilon(A, 2, 1e-5)


def test_epsilon_at_the_edges() -> None:
    assert Ledger().epsilon(1e-5) == 0.0
    assert (
        Ledger().charge(0, RoundCost(PoissonSampling(0.1), 0.0), "secure").epsilon(1e-5) == math.inf
    )


def run(**change: object) -> dict[str, object]:
    whole = {"first_round": 0, "num_rounds": 2, "release": "seeded:0", "cost": A.to_json()}
    return {**whole, **change}


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"version": 1, "releases": []},
        {"version": 2},
        {"version": 2, "releases": [3]},
        {"version": 2, "releases": [run(cost={})]},
    ],
)
def test_a_malformed_ledger_is_refused(data: object) -> None:
    with pytest.raises(ConfigError, match="ledger: cannot be read"):
        Ledger.from_json(data)
