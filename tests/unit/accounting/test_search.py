"""The price of the best of a random number of runs, and the law of that number."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import special, stats

from fedsim.accounting.accountants import (
    choose,
    delta,
    epsilon,
    epsilon_of_composition,
    profile_of_composition,
)
from fedsim.accounting.events import RoundCost
from fedsim.accounting.ledger import Ledger
from fedsim.accounting.privacy_filter import ORDERS, RenyiFilter
from fedsim.accounting.search import Search, Stopping
from fedsim.accounting.statement import PrivacyTerms
from fedsim.errors import ConfigError
from fedsim.sampling import BalancedSampling, FixedSizeSampling, PoissonSampling, Relation, Sampling

DELTA = 1e-5
STOPPINGS: tuple[Stopping, ...] = ("geometric", "logarithmic", "poisson")
POISSON = PoissonSampling(0.1)


def searched(
    stopping: Stopping = "geometric",
    sampling: Sampling = POISSON,
    *,
    noise: float = 1.5,
    trials: float = 6.0,
    rounds: int = 40,
    units: int = 1,
) -> RoundCost:
    return RoundCost(sampling, noise, units, Search(trials, rounds, 10.0, stopping))


@pytest.mark.parametrize("stopping", STOPPINGS)
@pytest.mark.parametrize("trials", [1.5, 6.0, 40.0])
def test_by_renyi_divergences_it_is_dp_accountings(stopping: Stopping, trials: float) -> None:
    cost = searched(stopping, trials=trials)
    base = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.SelfComposedDpEvent(
                dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.5)), 40
            ),
            dp_accounting.GaussianDpEvent(10.0),
        ]
    )
    shape = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}[stopping]
    reference = dp_accounting.rdp.RdpAccountant()
    reference.compose(dp_event.RepeatAndSelectDpEvent(base, trials, shape))
    assert epsilon(cost, 40, DELTA, "rdp") == pytest.approx(reference.get_epsilon(DELTA), rel=1e-3)


@pytest.mark.parametrize("stopping", STOPPINGS[:2])
@pytest.mark.parametrize(("mu", "trials"), [(0.5, 4.0), (1.5, 4.0), (1.0, 30.0)])
def test_a_score_that_is_the_release_costs_no_more(
    stopping: Stopping, mu: float, trials: float
) -> None:
    """The exact law of the best of K draws of N(±μ, 1), against the bound of their profile."""
    search = Search(trials, 1, 1.0, stopping)
    eps = np.linspace(0.0, 12.0, 241)
    of_trial = special.ndtr(mu / 2 - eps / mu) - np.exp(eps) * special.ndtr(-mu / 2 - eps / mu)
    shift = search.shift(of_trial, eps)

    def law(mean: float, y: np.ndarray) -> np.ndarray:
        rest = 1.0 - (1.0 - search.gamma) * special.ndtr(y - mean)
        return stats.norm.pdf(y - mean) * trials * (search.gamma / rest) ** (search.shape + 1)

    y = np.linspace(-12.0, 14.0, 200_001)
    laws = law(0.0, y), law(mu, y)
    assert np.trapezoid(laws[0], y) == pytest.approx(1.0, abs=1e-6)
    exceeded = False
    for one, other in (laws, laws[::-1]):
        for at in (0.5, 1.0, 2.0, 4.0, 8.0):
            exact = float(np.trapezoid(np.maximum(one - math.exp(at) * other, 0.0), y))
            beyond = at - shift
            charged = special.ndtr(mu / 2 - beyond / mu)
            charged -= math.exp(beyond) * special.ndtr(-mu / 2 - beyond / mu)
            bound = 1.0 if beyond < 0.0 else trials * float(charged)
            assert exact <= min(bound, 1.0) + 1e-9
            alone = special.ndtr(mu / 2 - at / mu)
            alone -= math.exp(at) * special.ndtr(-mu / 2 - at / mu)
            exceeded |= bool(exact > alone * 1.01)
    assert exceeded  # power: the price of the winner's run alone is too low


@pytest.mark.parametrize("stopping", STOPPINGS)
@pytest.mark.parametrize("trials", [1.2, 6.0])
def test_the_number_of_trials_has_its_law(stopping: Stopping, trials: float) -> None:
    search, rng = Search(trials, 1, 1.0, stopping), np.random.default_rng(1)
    drawn = np.array([search.draw(rng) for _ in range(20_000)])
    k = np.arange(2000)
    gamma = 0.0 if stopping == "poisson" else search.gamma
    if stopping == "poisson":
        law = stats.poisson.pmf(k, trials)
    elif stopping == "geometric":
        law = np.where(k > 0, gamma * (1 - gamma) ** (k - 1.0), 0.0)
    else:
        law = np.where(k > 0, (1 - gamma) ** k / (np.maximum(k, 1) * -math.log(gamma)), 0.0)
    assert law.sum() == pytest.approx(1.0, abs=1e-9)
    assert (law * k).sum() == pytest.approx(trials, rel=1e-6)

    def p_value(values: np.ndarray) -> float:
        edge = int(np.argmax(np.cumsum(law[::-1])[::-1] * len(values) < 5))
        seen = np.bincount(np.minimum(values, edge), minlength=edge + 1)
        expected = np.append(law[:edge], 1.0 - law[:edge].sum()) * len(values)
        some = expected > 0
        assert not seen[~some].any()
        return float(
            stats.chisquare(seen[some], expected[some] * seen.sum() / expected.sum()).pvalue
        )

    assert p_value(drawn) > 1e-4
    wrong = np.where(np.random.default_rng(2).random(len(drawn)) < 0.3, drawn + 1, drawn)
    assert p_value(wrong) < 1e-4  # power


@pytest.mark.parametrize(
    ("sampling", "rounds", "units"),
    [(POISSON, 40, 1), (POISSON, 40, 4), (BalancedSampling(40, 4), 40, 1)],
    ids=["uls", "els", "balanced"],
)
@pytest.mark.parametrize("stopping", STOPPINGS[:2])
def test_a_search_costs_more_than_its_trial_and_more_the_more_there_are(
    stopping: Stopping, sampling: Sampling, rounds: int, units: int
) -> None:
    few = searched(stopping, sampling, rounds=rounds, units=units, trials=2.0)
    many = searched(stopping, sampling, rounds=rounds, units=units, trials=20.0)
    of_trial = epsilon_of_composition(few.trial, DELTA)
    assert of_trial < epsilon(few, rounds, DELTA) < epsilon(many, rounds, DELTA) < 5.0 * of_trial
    assert epsilon(few, 1, DELTA) == epsilon(few, rounds, DELTA)  # stopping early is no cheaper
    spent = epsilon(few, rounds, DELTA)
    assert delta(few, rounds, spent) == pytest.approx(DELTA, rel=1e-2)
    profile = profile_of_composition([(few, rounds)], DELTA)
    assert profile(np.array([0.0, spent])).tolist() == [1.0, pytest.approx(DELTA, rel=1e-2)]


def test_two_searches_cost_the_sum_of_both() -> None:
    cost = searched()
    assert epsilon(cost, 80, DELTA) == pytest.approx(2.0 * epsilon(cost, 40, DELTA / 2.0))
    with pytest.raises(ConfigError, match="cannot be composed with"):
        choose([cost, RoundCost(POISSON, 1.0)])


@pytest.mark.parametrize("stopping", STOPPINGS[:2])
def test_a_filter_pays_what_the_theorem_says(stopping: Stopping) -> None:
    cost = searched(stopping, noise=3.0)
    shape = cost.search.shape if cost.search else 0.0
    reference = dp_accounting.rdp.RdpAccountant(list(ORDERS))
    reference.compose(dp_event.RepeatAndSelectDpEvent(*_base(3.0), 6.0, shape))
    for order in (4.0, 8.0, 16.0):
        theirs = reference.rdp[ORDERS.index(order)]
        spent = RenyiFilter(8.0, DELTA, Relation.ADD_OR_REMOVE, order).spent([(cost, 40)])
        assert theirs * (1 - 1e-6) <= spent + 1e-9
        assert spent <= theirs * 1.05


def _base(noise: float) -> tuple[dp_accounting.DpEvent]:
    cost = RoundCost(POISSON, noise)
    score = RoundCost(PoissonSampling(1.0), 10.0)
    return (dp_accounting.ComposedDpEvent([cost.composed(40), score.composed(1)]),)


def test_what_has_no_proof_is_refused() -> None:
    with pytest.raises(ConfigError, match='a Poisson number of trials by "rdp" alone'):
        epsilon(searched("poisson"), 40, DELTA, "pld")
    with pytest.raises(ConfigError, match="of a trial and its private score"):
        epsilon(searched(sampling=FixedSizeSampling(10, 100)), 40, DELTA)
    assert choose([searched("poisson")])[0].name == "rdp"
    with pytest.raises(ValueError, match="a run has 40"):
        searched(sampling=BalancedSampling(40, 2), rounds=41)
    for trials, rounds, noise, field in (
        (1.0, 1, 1.0, "trials"),
        (501.0, 1, 1.0, "trials"),  # where e^-trials would soon be 0, and no trial ever drawn
        (2.0, 0, 1.0, "rounds"),
        (2.0, 1, 0.0, "score_noise_multiplier"),
    ):
        with pytest.raises(ValueError, match=field):
            Search(trials, rounds, noise)


def test_a_ledger_keeps_it_and_a_statement_says_it() -> None:
    cost = searched()
    ledger = Ledger()
    for round in range(40):
        ledger = ledger.charge(round, cost, "kept:1")
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert ledger.epsilon(DELTA) == epsilon(cost, 40, DELTA)
    with pytest.raises(ValueError, match="pays for each of them once"):
        ledger.charge(40, cost, "kept:1")
    with pytest.raises(ValueError, match="pays for each of them once"):
        Ledger().charge(0, cost, "secure:1")  # which another draw would replace
    terms = PrivacyTerms.of(cost, "users", rounds=40, delta=DELTA, epsilon=1.0)
    assert "in each run of a search (geometric, 6 runs on average; the best" in terms.sentence()
    plain = RoundCost(POISSON, 1.5)
    assert "search" not in plain.to_json()
    broken = {**cost.to_json(), "search": {"trials": 2.0}}
    with pytest.raises(ConfigError, match=r"round cost = .*missing 2 required"):
        RoundCost.from_json(broken)
