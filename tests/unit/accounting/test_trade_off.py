"""The trade-off curve: closed forms, one (ε, δ) as a special case, no test beats it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.search import Search
from fedsim.accounting.trade_off import (
    EPSILONS,
    LEAST_RATE,
    RATES,
    TradeOff,
    attacker_sentence,
    gaussian_text,
    posterior,
)
from fedsim.experiments.studies.chua_2024.asi_liu.sampling import ConcentratedSampling
from fedsim.sampling import BalancedSampling, FixedSizeSampling, PoissonSampling, Sampling

ALPHAS = np.concatenate([np.geomspace(1e-6, 0.01, 200), np.linspace(0.0, 1.0, 1001)])


def curve_of(
    sampling: Sampling, noise: float, rounds: int, delta: float = 1e-5, units: int = 1
) -> TradeOff:
    found = TradeOff.of([(RoundCost(sampling, noise, units), rounds)], delta)
    assert found is not None
    return found


def gaussian(alphas: np.ndarray, mu: float) -> np.ndarray:
    return special.ndtr(-special.ndtri(alphas) - mu)


@pytest.mark.parametrize(("noise", "rounds"), [(10.0, 1), (10.0, 100), (2.0, 25), (40.0, 4)])
def test_a_gaussian_mechanism_has_its_closed_form(noise: float, rounds: int) -> None:
    mu = math.sqrt(rounds) / noise
    found = curve_of(PoissonSampling(1.0), noise, rounds)
    exact = gaussian(ALPHAS, mu)
    gap = exact - found.false_negative_rates(ALPHAS)
    assert gap.max() < 1e-4
    assert gap.min() > -1e-12  # never above: a bound on every test
    assert mu <= found.mu < 1.002 * mu + 1e-4
    assert 0.0 <= found.area - special.ndtr(mu / math.sqrt(2.0)) < 1e-4


@settings(max_examples=12, deadline=None)
@given(
    rate=st.floats(1e-3, 1.0),
    noise=st.floats(0.6, 8.0),
    rounds=st.integers(1, 400),
    delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
    units=st.sampled_from([1, 4]),
)
def test_no_pair_of_epsilon_and_delta_says_more(
    rate: float, noise: float, rounds: int, delta: float, units: int
) -> None:
    found = curve_of(PoissonSampling(rate), noise, rounds, delta, units)
    spent = epsilon(RoundCost(PoissonSampling(rate), noise, units), rounds, delta)
    # Kairouz, Oh and Viswanath 2015, Theorem 2.1: TPR <= e^ε FPR + δ, and mirrored.
    steep, flat = (
        np.exp(min(spent, 700.0)) * ALPHAS + delta,
        1.0 - np.exp(-spent) * (1.0 - delta - ALPHAS),
    )
    assert (found.true_positive_rates(ALPHAS) <= np.minimum(steep, flat) + 1e-12).all()
    last = (1.0 - found.deltas[-1]) ** 2 / (1.0 + np.exp(min(found.epsilons[-1], 700.0)))
    assert found.area <= 1.0 - last + 1e-12
    rates = found.true_positive_rates(np.sort(ALPHAS))
    assert (np.diff(rates) >= -1e-12).all()
    assert (rates >= np.sort(ALPHAS) - 1e-12).all()


def test_no_test_of_a_sampled_mechanism_beats_it() -> None:
    """Thresholds on the likelihood ratio, by 400,000 draws of both worlds, in both directions."""
    rate, noise, rounds, draws = 0.2, 1.0, 10, 400_000
    found = curve_of(PoissonSampling(rate), noise, rounds)
    rng = np.random.default_rng(0)

    def scores(present: bool) -> np.ndarray:
        total = np.zeros(draws)
        for _ in range(rounds):
            values = noise * rng.standard_normal(draws)
            if present:
                values += rng.random(draws) < rate
            total += np.log1p(rate * np.expm1((values - 0.5) / noise**2))
        return total

    inside, outside = scores(True), scores(False)
    worst = -np.inf
    for negatives, positives in ((outside, inside), (-inside, -outside)):
        thresholds = np.quantile(negatives, 1.0 - np.array([0.001, 0.01, 0.1, 0.5]))
        false = np.array([(negatives > t).mean() for t in thresholds])
        true = np.array([(positives > t).mean() for t in thresholds])
        bound = found.true_positive_rates(false)
        assert (true <= bound + 5.0 * np.sqrt(bound / draws)).all()
        worst = max(worst, float((true / bound).max()))
    assert worst > 0.98  # power: the likelihood ratio reaches the bound


def test_the_numbers_of_a_sampled_gaussian() -> None:
    """Rates as gdpnum 0.1.2 has them (its μ drops tails, which ours keeps)."""
    found = curve_of(PoissonSampling(0.3), 1.0, 20)
    rates = found.true_positive_rates(np.array(RATES))
    assert rates.tolist() == pytest.approx([0.07319310, 0.22203944, 0.56936703], abs=1e-4)
    assert found.mu >= 1.7907149702807215
    sentence = attacker_sentence(found.to_json(), "user", "add-or-remove-one user")
    assert (
        "names 1 in 1,000 users whose text was not trained on finds at most 7.33 % of" in sentence
    )
    assert "with a prior belief of 1 % is at most 42.6 % sure" in sentence
    assert "% sure. A test that names fewer people can be surer. Under" in sentence
    assert "μ" not in sentence
    said = gaussian_text({"mu": 1.7907149702807215})
    assert said == "nearly as strong as 1.791-GDP (docs/accounting.md#what-an-attacker-can-achieve)"
    assert gaussian_text({"mu": None}) is None
    marked = attacker_sentence(
        found.to_json(), "user", "zero-out-one", seeded=True, hypothetical=True
    )
    assert marked.startswith("Hypothetical, no guarantee. For an attacker, with secret randomness")
    replaced = attacker_sentence(found.to_json(), "user", "replace-one")
    assert "not trained on (another's was in its place) finds" in replaced


@pytest.mark.parametrize(
    ("sampling", "rounds"),
    [(FixedSizeSampling(10, 1000), 50), (BalancedSampling(20, 2), 20), (PoissonSampling(0.05), 20)],
    ids=["fixed-size", "balanced", "poisson"],
)
def test_what_is_reported(sampling: Sampling, rounds: int) -> None:
    found = curve_of(sampling, 2.0, rounds)
    report = found.to_json()
    assert [one["epsilon"] for one in report["deltas"]] == list(EPSILONS)
    assert all(low["delta"] >= high["delta"] for low, high in pairwise(report["deltas"]))
    for test in report["tests"]:
        rate, most = test["false_positive_rate"], test["true_positive_rate"]
        expected = [posterior(prior, rate, most) for prior in report["priors"]]
        assert test["posteriors"] == expected
        assert most == found.true_positive_rates(np.array([rate]))[0]
    assert report["auroc"] >= 0.5
    gauss = gaussian(np.array([LEAST_RATE, *RATES]), report["mu"])
    assert (found.false_negative_rates(np.array([LEAST_RATE, *RATES])) >= gauss - 1e-12).all()


MECHANISMS = {
    "uls": (RoundCost(PoissonSampling(0.3), 1.0), 20),
    "els": (RoundCost(PoissonSampling(0.05), 1.0, 4), 50),
    "balanced": (RoundCost(BalancedSampling(20, 2), 1.0), 20),
    "search": (RoundCost(PoissonSampling(0.3), 1.5, 1, Search(6.0, 20, 5.0)), 20),
    "poisson search": (
        RoundCost(PoissonSampling(0.3), 1.5, 1, Search(6.0, 20, 5.0, "poisson")),
        20,
    ),
    "asi-liu": (RoundCost(ConcentratedSampling(20_000, 0.5, 10), 2.0), 10),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_area_and_mu_are_of_the_whole_curve(name: str) -> None:
    """Against the curve itself at 44,000 rates, also where no δ is below 1 at a small ε."""
    found = TradeOff.of([MECHANISMS[name]], 1e-5)
    assert found is not None
    rates = np.concatenate([np.geomspace(1e-12, 1e-3, 4000), np.linspace(1e-3, 1.0, 40_001)])
    wrong = np.concatenate([found.false_negative_rates(r) for r in np.array_split(rates, 40)])
    area = 1.0 - float(np.trapezoid(wrong, rates))
    assert -1e-9 <= found.area - area <= 1e-6
    inside = (rates >= LEAST_RATE) & (wrong >= LEAST_RATE)
    needed = float((-special.ndtri(rates[inside]) - special.ndtri(wrong[inside])).max())
    assert -1e-9 <= found.mu - needed <= 1e-3
    gauss = special.ndtr(-special.ndtri(rates) - found.mu)
    assert (wrong[inside] >= gauss[inside] - 1e-12).all()


def test_a_posterior_is_bayes_rule() -> None:
    assert posterior(0.5, 0.1, 0.3) == pytest.approx(0.75)
    assert posterior(0.01, 0.001, 0.1) == pytest.approx(0.001 / (0.001 + 0.00099))
    assert posterior(0.5, 0.2, 0.2) == pytest.approx(0.5)


def test_without_a_finite_epsilon_there_is_no_curve() -> None:
    assert TradeOff.of([(RoundCost(PoissonSampling(0.1), 0.0), 3)], 1e-5) is None


def test_no_rounds_tell_nothing() -> None:
    found = curve_of(PoissonSampling(0.1), 1.0, 0)
    assert found.true_positive_rates(np.array(RATES)).tolist() == pytest.approx(list(RATES))
    assert found.area == 0.5
    assert found.mu == pytest.approx(0.0, abs=1e-6)
