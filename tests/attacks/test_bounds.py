"""The bound on the ROC, and the area under it, against closed forms and plain integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from fedsim.attacks.roc import auroc_bound, roc_bound

EPSILONS = st.floats(0.0, 30.0)
DELTAS = st.floats(0.0, 1.0)


@given(EPSILONS, DELTAS)
def test_the_area_is_the_integral_of_the_curve(epsilon: float, delta: float) -> None:
    corner = (1.0 - delta) / (1.0 + math.exp(epsilon))
    area = sum(
        quad(lambda x: float(roc_bound(np.array([x]), epsilon, delta)[0]), low, high)[0]
        for low, high in ((0.0, corner), (corner, 1.0 - delta), (1.0 - delta, 1.0))
    )
    assert auroc_bound(epsilon, delta) == pytest.approx(area, abs=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta", "area"),
    [
        (0.0, 0.0, 0.5),  # nothing can be told
        (0.0, 0.2, 1.0 - 0.8**2 / 2),  # the total variation distance is δ
        (math.log(3.0), 0.0, 0.75),  # randomised response that lies one time in four
        (math.inf, 0.0, 1.0),
        (800.0, 1e-5, 1.0),
        (1.0, 1.0, 1.0),
    ],
)
def test_closed_forms(epsilon: float, delta: float, area: float) -> None:
    assert auroc_bound(epsilon, delta) == pytest.approx(area, abs=1e-12)


@given(EPSILONS, DELTAS, st.floats(0.0, 1.0))
def test_both_lines_hold_and_one_is_met(epsilon: float, delta: float, rate: float) -> None:
    best = float(roc_bound(np.array([rate]), epsilon, delta)[0])
    grown = math.exp(epsilon)
    assert best <= grown * rate + delta + 1e-9
    assert 1.0 - rate <= grown * (1.0 - best) + delta + 1e-9 * grown
    met = (
        abs(best - grown * rate - delta) < 1e-9 * (1 + grown)
        or abs((1.0 - rate - delta) - grown * (1.0 - best)) < 1e-9 * (1 + grown)
        or best == 1.0
    )
    assert met


def test_randomised_response_reaches_the_bound() -> None:
    """A mechanism that says the truth with probability e^ε / (1 + e^ε) is at the corner."""
    epsilon = 1.3
    truth = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    assert roc_bound(np.array([1.0 - truth]), epsilon, 0.0)[0] == pytest.approx(truth)


def test_an_infinite_epsilon_bounds_nothing() -> None:
    assert roc_bound(np.array([0.0, 1e-9, 1.0]), math.inf, 0.25).tolist() == [0.25, 1.0, 1.0]


@pytest.mark.parametrize(("epsilon", "delta"), [(-1.0, 0.1), (math.nan, 0.1), (1.0, 1.1)])
def test_what_is_no_guarantee_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon = |delta = "):
        auroc_bound(epsilon, delta)
