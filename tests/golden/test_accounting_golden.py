"""ε and δ against dp_accounting itself, against published values, and across accountants."""

from __future__ import annotations

import dp_accounting
import pytest

from fedsim.accounting import accountants
from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.sampling import PoissonSampling, Relation, TruncatedPoissonSampling


def poisson(probability: float, noise_multiplier: float, units_per_user: int = 1) -> RoundCost:
    return RoundCost(PoissonSampling(probability), noise_multiplier, units_per_user)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("cost", [poisson(0.02, 1.1), poisson(1.0, 20.0)])
def test_pld_is_dp_accountings_pld_accountant(cost: RoundCost, relation: Relation) -> None:
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
            cost.sampling.probability, dp_accounting.GaussianDpEvent(cost.noise_multiplier)
        ),
        150,
    )
    reference = dp_accounting.pld.PLDAccountant(relation.of_dp_accounting).compose(event)
    assert cost.composed(150) == event
    spent = epsilon(cost, 150, 1e-5, "pld", relation)
    assert spent == pytest.approx(reference.get_epsilon(1e-5), rel=1e-3)
    assert accountants.delta(cost, 150, 1.0, "pld", relation) == pytest.approx(
        reference.get_delta(1.0), rel=1e-3
    )
    # δ at ε(δ) is δ: the two questions have one answer
    assert accountants.delta(cost, 150, spent, "pld", relation) == pytest.approx(1e-5, rel=5e-3)


def test_rdp_is_dp_accountings_rdp_accountant_and_no_tighter_than_the_pld() -> None:
    cost = poisson(0.02, 1.1)
    reference = dp_accounting.rdp.RdpAccountant().compose(cost.composed(150))
    assert epsilon(cost, 150, 1e-5, "rdp") == pytest.approx(reference.get_epsilon(1e-5), rel=1e-9)
    assert accountants.delta(cost, 150, 1.0, "rdp") == pytest.approx(
        reference.get_delta(1.0), rel=1e-9
    )
    assert epsilon(cost, 150, 1e-5, "pld") < epsilon(cost, 150, 1e-5, "rdp")


def test_mixture_grows_with_the_group_and_stays_below_full_participation() -> None:
    values = [epsilon(poisson(0.05, 6.0, k), 30, 1e-6) for k in (1, 2, 4, 8)]
    assert values == sorted(values)
    assert values[0] < values[-1]
    # with every coin heads, eight units a user are one Gaussian of an eighth of the noise
    certain = epsilon(poisson(1.0, 6.0, 8), 30, 1e-6)
    gaussian = epsilon(poisson(1.0, 6.0 / 8), 30, 1e-6)
    assert values[-1] < certain
    assert certain == pytest.approx(gaussian, rel=1e-3)


@pytest.mark.parametrize(
    ("noise", "units", "published"),
    [
        (1.0, 1, 2.9553),  # by three independent prototypes
        (1.0, 4, 14.535),
        (1.0, 32, 259.136),
        (2.0, 32, 66.834),
        (4.0, 32, 23.626),
    ],
)
def test_the_setting_of_charles_figure_1(noise: float, units: int, published: float) -> None:
    """T = 2000, p = 0.01, δ = 1e-6; dp_accounting on its default grid, to the digits given."""
    assert epsilon(poisson(0.01, noise, units), 2000, 1e-6) == pytest.approx(published, rel=2e-4)


@pytest.mark.parametrize("relation", Relation)
def test_truncated_poisson_is_hardly_above_dp_accountings(relation: Relation) -> None:
    """Some 6 %, since it holds for every population up to the declared one."""
    cost = RoundCost(TruncatedPoissonSampling(0.01, 14, 1000), 1.0)
    theirs = dp_accounting.pld.PLDAccountant(
        relation.of_dp_accounting, value_discretization_interval=1e-3
    )
    reference = theirs.compose(cost.composed(300)).get_epsilon(1e-6)
    found = epsilon(cost, 300, 1e-6, "pld", relation)
    assert reference * (1 - 1e-6) <= found <= reference * 1.07
