"""Truncated, fixed-size and shuffled cohorts follow the laws that they are accounted as."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.estimators import FixedDenominator
from fedsim.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
)
from fedsim.seeding import Coins, stream
from tests.helpers.coins import secret, seeded
from tests.unit.mechanism.test_plan import make_plan

N, Q, CAP, ROUNDS = 60, 0.2, 14, 4000
TRUNCATED = TruncatedPoissonSampling(Q, CAP, N)
Cohorts = list[npt.NDArray[np.int64]]


COINS = seeded(5, N)


def cohorts(law: Sampling, coins: Coins = COINS) -> Cohorts:
    return [law.draw(N, round, coins) for round in range(ROUNDS)]


def p_of_truncated_sizes(drawn: Cohorts) -> float:
    """Chi-squared fit of cohort sizes to min(Binomial(N, Q), CAP); the lower tail is pooled."""
    law, low = stats.binom(N, Q), 6
    sizes = np.array([len(cohort) for cohort in drawn])
    if sizes.max() > CAP:
        return 0.0
    observed = np.bincount(np.maximum(sizes, low) - low, minlength=CAP - low + 1)
    expected = np.array([law.pmf(k) for k in range(low, CAP + 1)])
    expected[0], expected[-1] = law.cdf(low), law.sf(CAP - 1)
    return float(stats.chisquare(observed, expected * len(drawn)).pvalue)


def p_of_equal_shares(drawn: Cohorts) -> float:
    """Chi-squared test that every unit is drawn equally often."""
    counts = np.bincount(np.concatenate(drawn), minlength=N)
    return float(stats.chisquare(counts).pvalue)


def p_of_joint_event(drawn: Cohorts) -> float:
    """Test P(unit 0 is in, and the cap was reached), which is what truncation is charged by.

    dp_accounting's event: the others reach the cap with P(Binomial(N - 1, Q) >= CAP), and given
    that, unit 0 is kept with P(Binomial(N, Q) > CAP) CAP / (N P(...)) beyond plain Q. All that
    needs is that unit 0 is in a full cohort with probability CAP / N times its frequency.
    """
    full = [cohort for cohort in drawn if len(cohort) == CAP]
    hits = sum(0 in cohort for cohort in full)
    return float(stats.binomtest(hits, len(full), CAP / N).pvalue)


def test_truncated_cohorts_follow_the_accounted_law() -> None:
    drawn = cohorts(TRUNCATED)
    assert p_of_truncated_sizes(drawn) > 1e-3
    assert p_of_equal_shares(drawn) > 1e-3
    assert p_of_joint_event(drawn) > 1e-3


def test_truncated_by_system_entropy() -> None:
    drawn = cohorts(TRUNCATED, secret(N))
    assert p_of_truncated_sizes(drawn) > 1e-6  # not seeded
    assert p_of_equal_shares(drawn) > 1e-6


def test_other_laws_are_rejected() -> None:
    plain = cohorts(PoissonSampling(Q))
    first = [cohort[:CAP] for cohort in plain]  # keeps the lowest indices, not a uniform subset
    assert p_of_truncated_sizes(plain) < 1e-3
    assert p_of_truncated_sizes(cohorts(FixedSizeSampling(12, N))) < 1e-3
    assert p_of_truncated_sizes(cohorts(TruncatedPoissonSampling(1.1 * Q, CAP, N))) < 1e-3
    assert p_of_truncated_sizes(first) > 1e-3  # the sizes alone do not see it
    assert p_of_equal_shares(first) < 1e-3
    assert p_of_joint_event(first) < 1e-3


def test_a_plan_draws_what_it_accounts() -> None:
    """The plan's own cohorts, seeded as a run seeds them, against the plan's own cost."""
    plan = make_plan(
        pool=np.arange(N), sampling=TRUNCATED, estimator=FixedDenominator(Q, N), seed=8
    )
    drawn = [plan.cohort(round) for round in range(ROUNDS)]
    assert p_of_truncated_sizes(drawn) > 1e-3
    assert p_of_equal_shares(drawn) > 1e-3
    event = plan.cost.event
    assert (event.sampling_probability, event.truncated_batch_size) == (Q, CAP)
    assert event.dataset_size == N


def test_accounting_truncated_as_plain_poisson_would_print_another_number() -> None:
    truncated = epsilon(RoundCost(TRUNCATED, 2.0), 50, 1e-5)
    plain = epsilon(RoundCost(PoissonSampling(Q), 2.0), 50, 1e-5)
    assert truncated > 1.2 * plain


def test_fixed_size_cohorts_are_uniform_subsets() -> None:
    def p_of_neighbours(drawn: Cohorts) -> float:
        both = sum(0 in cohort and 1 in cohort for cohort in drawn)
        return float(stats.binomtest(both, ROUNDS, 12 * 11 / (N * (N - 1))).pvalue)

    drawn = cohorts(FixedSizeSampling(12, N))
    assert {len(cohort) for cohort in drawn} == {12}
    assert p_of_equal_shares(drawn) > 1e-3
    assert p_of_neighbours(drawn) > 1e-3
    blocks = [
        (stream(5, "sampling", round).integers(N) + np.arange(12)) % N for round in range(ROUNDS)
    ]
    assert p_of_equal_shares(blocks) > 1e-3  # each as often, but not independently
    assert p_of_neighbours(blocks) < 1e-3


def test_shuffled_passes_take_everybody_once() -> None:
    law = ShuffledSampling(7, 60)
    a_pass = [law.draw(60, round, COINS) for round in range(8)]
    taken = np.concatenate(a_pass)
    assert [len(cohort) for cohort in a_pass] == [7] * 8
    assert len(set(taken.tolist())) == 56  # four wait for the next pass
    following = [law.draw(60, round, COINS) for round in range(8, 16)]
    assert [len(cohort) for cohort in following] == [7] * 8
    assert len(set(np.concatenate(following).tolist())) == 56
    assert not all(np.array_equal(a, b) for a, b in zip(a_pass, following, strict=True))
    counts = np.zeros(60)
    for round in range(ROUNDS):
        counts[law.draw(60, round, COINS)] += 1
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    ("law", "num_units", "message"),
    [
        (TRUNCATED, N + 1, "there are 61 units"),
        (FixedSizeSampling(12, N), N - 1, "there are 59 units"),
        (ShuffledSampling(12, N), N + 1, "there are 61 units"),
    ],
)
def test_a_population_that_is_not_the_accounted_one(
    law: Sampling, num_units: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        law.draw(num_units, 0, seeded(5, num_units))
