"""A budget composes what a ledger holds, whatever it cost, and refuses one release too many."""

from __future__ import annotations

import math

import pytest

from fedsim.accounting.accountants import epsilon, epsilon_of_composition
from fedsim.accounting.budget import Budget
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.errors import ConfigError
from fedsim.sampling import PoissonSampling, Relation

A = RoundCost(PoissonSampling(0.1), 2.0)
B = RoundCost(PoissonSampling(0.3), 3.0)
DELTA = 1e-5


def ledger_of(*charges: tuple[RoundCost, int]) -> Ledger:
    ledger = Ledger()
    for cost, count in charges:
        for _ in range(count):
            ledger = ledger.charge(ledger.num_releases, cost, "seeded:0")
    return ledger


def test_spent_of_rounds_that_cost_differently() -> None:
    ledger = ledger_of((A, 5), (B, 3), (A, 2))
    budget = Budget(3.0, DELTA)
    together = epsilon_of_composition([(A, 7), (B, 3)], DELTA)
    assert budget.spent(ledger) == together
    assert budget.spent(Ledger()) == 0.0
    # Composed, not added: and more than either part.
    assert max(epsilon(A, 7, DELTA), epsilon(B, 3, DELTA)) < together
    assert together < epsilon(A, 7, DELTA) + epsilon(B, 3, DELTA)


@pytest.mark.parametrize(
    ("epsilon", "delta", "field"),
    [
        (math.nan, DELTA, "epsilon"),
        (0.0, DELTA, "epsilon"),
        (1.0, 0.0, "delta"),
        (1.0, 1.0, "delta"),
    ],
)
def test_a_budget_that_would_refuse_nothing_is_none(
    epsilon: float, delta: float, field: str
) -> None:
    with pytest.raises(ConfigError, match=f"{field} = .*: give a number"):
        Budget(epsilon, delta)


@pytest.mark.parametrize("held", [(), ((A, 4),), ((B, 6), (A, 1))])
def test_affordable_is_the_last_number_that_fits(held: tuple[tuple[RoundCost, int], ...]) -> None:
    ledger, budget = ledger_of(*held), Budget(2.0, DELTA)
    count = budget.affordable(ledger, B, 1000)
    assert 0 < count < 1000
    counts = dict(ledger.costs)

    def total(further: int) -> float:
        return epsilon_of_composition([*{**counts, B: counts.get(B, 0) + further}.items()], DELTA)

    assert total(count) <= 2.0 < total(count + 1)
    assert budget.affordable(ledger, B, 3) == 3


@pytest.mark.parametrize(("cost", "at_most"), [(A, 10), (B, 0), (B, 1), (B, 7)])
def test_an_overspent_budget_pays_for_nothing(cost: RoundCost, at_most: int) -> None:
    """Nor for rounds of another cost than the ledger's, of which there are none to take away."""
    assert Budget(0.01, DELTA).affordable(ledger_of((A, 5)), cost, at_most) == 0


def test_the_relation_is_part_of_the_price() -> None:
    replace = Budget(1.0, DELTA, relation=Relation.REPLACE)
    ledger = ledger_of((A, 3))
    assert replace.spent(ledger) > 1.2 * Budget(1.0, DELTA).spent(ledger)
    assert replace.affordable(Ledger(), A, 500) < Budget(1.0, DELTA).affordable(Ledger(), A, 500)


def test_a_noiseless_release_spends_everything() -> None:
    free = RoundCost(PoissonSampling(0.1), 0.0)
    assert math.isinf(Budget(9.0, DELTA).spent(ledger_of((free, 1))))
