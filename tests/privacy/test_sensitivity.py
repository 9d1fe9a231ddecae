"""No neighbouring pair moves an estimate by more than the sensitivity that sets its noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim.clipping import Clip
from fedsim.estimators import ClippedDenominator, Estimator, FixedDenominator, WeightedSum
from fedsim.execution import Accumulator, Update
from fedsim.tensors import l2_norm, scale
from tests.contracts.test_clips import CLIPS, ENTRIES, make_update

ESTIMATORS: dict[str, Estimator] = {
    "fixed": FixedDenominator(sampling_probability=0.25, total_weight=10.0),
    "clipped": ClippedDenominator(sampling_probability=0.25, min_weight=8.0),
    "clipped small": ClippedDenominator(sampling_probability=0.5, min_weight=1.0),
}
# NaN and infinity included: a user can send anything.
HOSTILE = st.one_of(ENTRIES, st.sampled_from([math.nan, math.inf, -math.inf, 1e-45, 3.4e38]))
USER = st.tuples(st.lists(HOSTILE, min_size=6, max_size=6), st.floats(0.0, 1.0))
User = tuple[list[float], float]


def total(users: Sequence[User], clip: Clip) -> WeightedSum:
    accumulator = Accumulator(make_update([0.0] * 6), clip)
    for values, weight in users:
        accumulator.add(Update(make_update(values), loss=0.0, num_gradients=1), weight)
    return accumulator.total()


def sums(users: Sequence[User], one: User, clip: Clip) -> tuple[WeightedSum, WeightedSum]:
    """Without and with `one`."""
    return total(users, clip), total([*users, one], clip)


def moved(neighbours: tuple[WeightedSum, WeightedSum], estimator: Estimator) -> float:
    """How far the estimates of two sums are apart."""
    without, with_one = (scale(part.values, estimator.factor(part)) for part in neighbours)
    return l2_norm({name: with_one[name] - without[name] for name in without})


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
@given(users=st.lists(USER, max_size=12), one=USER)
def test_no_neighbouring_pair_exceeds_the_sensitivity(
    clip: Clip, users: list[User], one: User
) -> None:
    neighbours = sums(users, one, clip)
    for estimator in ESTIMATORS.values():
        # The slack is float64 rounding of sums of a dozen terms, nothing else.
        allowed = estimator.sensitivity(clip.bound) * (1 + 1e-12)
        assert moved(neighbours, estimator) <= allowed, estimator


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_an_adversary_attains_the_fixed_denominators_sensitivity(clip: Clip) -> None:
    estimator = ESTIMATORS["fixed"]
    users: list[User] = [([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 1.0)] * 3
    attained = moved(sums(users, ([1e20] * 6, 1.0), clip), estimator)
    assert attained >= 0.95 * estimator.sensitivity(clip.bound)


def test_the_clipped_denominators_factor_two_is_needed() -> None:
    """Lemma 1: S/(qW_min) is not enough, because a unit moves the denominator too."""
    estimator, clip = ClippedDenominator(sampling_probability=0.25, min_weight=8.0), CLIPS["flat"]
    users: list[User] = [([1e20] * 6, 0.5)] * 4
    attained = moved(sums(users, ([-1e20] * 6, 1.0), clip), estimator)
    assert attained > 1.3 * 0.7 / (0.25 * 8.0)
    assert attained <= estimator.sensitivity(clip.bound)


def estimated(estimator: Estimator, users: Sequence[User]) -> float:
    summed = total(users, CLIPS["flat"])
    return estimator.factor(summed) * float(summed.values["a.weight"][0])


def test_the_sum_is_divided_by_the_declared_weight_not_by_the_drawn_one() -> None:
    users: list[User] = [([0.1, 0.0, 0.0, 0.0, 0.0, 0.0], 1.0)] * 7
    assert estimated(ESTIMATORS["fixed"], users) == pytest.approx(0.7 / 2.5)


def test_an_update_that_is_not_finite_counts_as_zero_and_is_counted() -> None:
    users: list[User] = [([math.nan] + [1.0] * 5, 1.0), ([math.inf] * 6, 0.5)]
    summed = total(users, CLIPS["flat"])
    assert (summed.num_non_finite, summed.num_units, summed.weight) == (2, 2, 1.5)
    assert l2_norm(summed.values) == 0.0


def test_weighted_sums_are_a_monoid() -> None:
    clip = CLIPS["flat"]
    one, two, three = (total([([float(n)] * 6, 0.5)], clip) for n in (1, 2, 3))
    zero = WeightedSum.zero(one.values)
    left, right = (one + two) + three, one + (two + three)
    assert l2_norm({k: left.values[k] - right.values[k] for k in left.values}) < 1e-15
    assert all(torch.equal((zero + one).values[k], one.values[k]) for k in one.values)
    assert left.num_units == 3
    assert left.weight == 1.5
