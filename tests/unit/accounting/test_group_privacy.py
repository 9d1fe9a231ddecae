"""Black-box group privacy: Vadhan's lemma on the example-level PLD, and where it gives up."""

from __future__ import annotations

import math

import dp_accounting
import pytest

from fedsim.accounting.accountants import delta, epsilon
from fedsim.accounting.events import RoundCost
from fedsim.sampling import PoissonSampling

ROUNDS, PROBABILITY, DELTA = 2000, 0.01, 1e-6


def spent(noise: float, units: int, accountant: str = "group-privacy") -> float:
    return epsilon(RoundCost(PoissonSampling(PROBABILITY), noise, units), ROUNDS, DELTA, accountant)


@pytest.mark.parametrize(
    ("noise", "units", "anchor"),
    [(1.0, 4, 20.44), (2.0, 8, 12.42), (1.0, 2, None), (3.0, 16, None)],
)
def test_satisfies_vadhans_inequality_by_dp_accountings_pld(
    noise: float, units: int, anchor: float | None
) -> None:
    """(ε₁, δ₁) for one is (k ε₁, δ₁ (e^(k ε₁) - 1) / (e^ε₁ - 1)) for k; the best ε₁ is found."""
    value = spent(noise, units)
    if anchor is not None:
        assert value == pytest.approx(anchor, rel=3e-3)
    # Its δ of one is 3e-13 for four: on coarser grids its Fourier transform rounds by half of that,
    # and by how much is the processor's.
    one = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4).compose(
        RoundCost(PoissonSampling(PROBABILITY), noise).composed(ROUNDS)
    )

    def delta_of_group(epsilon_of_group: float) -> float:
        each = epsilon_of_group / units
        growth = math.expm1(epsilon_of_group) / math.expm1(each)
        return float(one.get_delta(each)) * growth

    assert delta_of_group(value * 1.01) <= DELTA
    assert delta_of_group(value * 0.99) > DELTA


def test_diverges() -> None:
    assert spent(1.0, 8) == math.inf
    assert spent(1.0, 8, "mixture") < 40.0  # an accountant that looks inside has an answer


def test_a_group_of_one_is_the_pld() -> None:
    assert spent(1.0, 1) == pytest.approx(spent(1.0, 1, "pld"), rel=1e-3)
    assert spent(1.0, 1) >= spent(1.0, 1, "pld") * (1.0 - 1e-6)


def test_delta_is_vadhans() -> None:
    cost = RoundCost(PoissonSampling(PROBABILITY), 3.0, 4)
    value = epsilon(cost, ROUNDS, DELTA, "group-privacy")
    assert delta(cost, ROUNDS, value, "group-privacy") == pytest.approx(DELTA, rel=0.05)
    one = RoundCost(PoissonSampling(PROBABILITY), 3.0)
    expected = delta(one, ROUNDS, 0.5, "pld") * math.expm1(2.0) / math.expm1(0.5)
    assert delta(cost, ROUNDS, 2.0, "group-privacy") == pytest.approx(expected, rel=1e-9)
    assert delta(cost, ROUNDS, 0.0, "group-privacy") == pytest.approx(
        min(1.0, 4 * delta(one, ROUNDS, 0.0, "pld")), rel=1e-9
    )
    assert delta(cost, ROUNDS, 60.0, "group-privacy") == 1.0  # growth beats what a PLD resolves
