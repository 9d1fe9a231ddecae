"""The private median is ε-private by its own probabilities, and is the median where it can be."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedsim.planner.private_median import CANDIDATES, private_median, rank_error, scores
from fedsim.sampling import Relation
from fedsim.seeding import stream

Values = npt.NDArray[np.float64]
UNLUCKY = 1e-6  # of a right mechanism; a wrong one fails but for as little


def exact(values: Values, epsilon: float, relation: Relation) -> Values:
    """Return every candidate's probability, by sweeping the one uniform that is drawn."""
    rate = epsilon / (1.0 if relation is Relation.ADD_OR_REMOVE else 2.0)
    weights = np.exp(rate * (scores(values) - scores(values).max()))
    return np.asarray(weights / weights.sum())


class Fixed:
    """A source whose next uniform is known."""

    def __init__(self, uniform: float) -> None:
        self._uniform = uniform

    def random(self, size: int) -> Values:
        return np.full(size, self._uniform)


def norms(count: int, middle: float = 3.0) -> Values:
    return middle * np.exp(0.3 * np.random.default_rng(count).standard_normal(count))


def test_many_users_and_the_median_is_found() -> None:
    values = norms(401)
    got = private_median(values, 2.0, Relation.ADD_OR_REMOVE, stream(0, "planning", 1))
    assert got == pytest.approx(np.median(values), rel=0.2)


def test_equal_values_are_found() -> None:
    """Where counts of "below" alone would say nothing at all."""
    got = private_median(np.full(200, 7.0), 1.0, Relation.REPLACE, stream(0, "planning", 1))
    assert got == pytest.approx(7.0, rel=0.1)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("epsilon", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("count", [1, 31, 401])
def test_an_answer_misses_by_no_more_than_is_said(
    epsilon: float, relation: Relation, count: int
) -> None:
    most = rank_error(epsilon, relation)

    def chance(values: Values, error: float) -> float:
        missed = scores(values).max() - scores(values)
        return float(exact(values, epsilon, relation)[missed > error].sum())

    assert chance(norms(count), most) <= 0.05
    assert chance(np.full(most + 1, 3.0), most) <= 0.05  # every wrong answer misses all of them
    assert chance(np.full(most // 2 + 1, 3.0), most / 2) > 0.2  # half of it would be no bound


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("epsilon", [0.3, 2.0])
def test_the_answers_have_the_probabilities_that_the_mechanism_has(
    epsilon: float, relation: Relation
) -> None:
    """A chi-squared test of 4,000 draws; at twice the ε it must fail, so it has the power."""
    values, draws = norms(31), 4_000
    source = stream(5, "planning", 3)
    got = [private_median(values, epsilon, relation, source) for _ in range(draws)]
    counts = np.array([np.isclose(got, candidate).sum() for candidate in CANDIDATES])
    assert counts.sum() == draws

    def p_value(claimed: float) -> float:
        expected = exact(values, claimed, relation) * draws
        common = expected >= 5.0
        seen = np.append(counts[common], counts[~common].sum())
        meant = np.append(expected[common], expected[~common].sum())
        kept = meant > 0.0
        return float(stats.chisquare(seen[kept], meant[kept]).pvalue)

    assert p_value(epsilon) > UNLUCKY
    assert p_value(2 * epsilon) < UNLUCKY


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_no_neighbour_is_further_than_epsilon(epsilon: float) -> None:
    """Exactly, over all candidates; some neighbour comes near, or the noise would be too much."""
    values = norms(8)
    others = [0.0, 0.5, 2.0, 3.0, 40.0, math.inf, math.nan]
    added = [np.append(values, other) for other in others]
    removed = [np.delete(values, place) for place in range(len(values))]
    replaced = [np.append(less, other) for less in removed for other in others]
    worst = {}
    for relation, neighbours in (
        (Relation.ADD_OR_REMOVE, added + removed),
        (Relation.REPLACE, replaced),
    ):
        here = np.log(exact(values, epsilon, relation))
        worst[relation] = max(
            float(np.abs(here - np.log(exact(neighbour, epsilon, relation))).max())
            for neighbour in neighbours
        )
        assert worst[relation] <= epsilon * (1 + 1e-9)
        assert worst[relation] > 0.4 * epsilon
    here, there = (exact(v, 2 * epsilon, Relation.REPLACE) for v in (values, replaced[-1]))
    assert np.abs(np.log(here) - np.log(there)).max() > 0.4 * epsilon


def test_replacing_needs_the_smaller_rate() -> None:
    """At the rate of add-or-remove, some replacement would be told by more than ε."""
    values, epsilon = norms(8), 1.0
    other = np.append(np.delete(values, np.argmin(values)), 40.0)
    rate = Relation.ADD_OR_REMOVE
    gap = np.abs(np.log(exact(values, epsilon, rate)) - np.log(exact(other, epsilon, rate)))
    assert gap.max() > epsilon


@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("values", [[], [0.0], [math.inf] * 3, [math.nan, 1e30, 1e-30]], ids=str)
def test_whatever_the_values_the_answer_is_a_candidate(values: list[float], uniform: float) -> None:
    got = private_median(np.array(values), 1.0, Relation.ADD_OR_REMOVE, Fixed(uniform))
    assert got in CANDIDATES
