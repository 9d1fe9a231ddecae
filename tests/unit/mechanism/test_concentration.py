"""The filter's arithmetic by hand, and the laws of its noise against wrong ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from fedsim.experiments.studies.chua_2024.asi_liu.accountant import failure_probability
from fedsim.experiments.studies.chua_2024.asi_liu.filter import (
    concentration_score,
    distances,
    filter_weights,
)
from fedsim.experiments.studies.chua_2024.asi_liu.sampling import (
    SCORE_SENSITIVITY,
    AboveThreshold,
    ConcentratedSampling,
    halting_test,
    laplace,
)
from fedsim.seeding import secret_stream, stream

DRAWS = 20_000


def test_distances_are_those_of_all_pairs() -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(size=(7, 70_000))).float()
    exact = torch.cdist(rows.double(), rows.double(), compute_mode="donot_use_mm_for_euclid_dist")
    np.testing.assert_allclose(distances(rows), exact.numpy(), rtol=1e-9, atol=1e-6)
    assert (np.diagonal(distances(rows)) == 0.0).all()


def test_score_and_weights_by_hand() -> None:
    """Twelve users on a line, τ = 1: eight at 0, one each at 1, 2, 2.5 and 100."""
    places = torch.tensor([0.0] * 8 + [1.0, 2.0, 2.5, 100.0])[:, None]
    between = distances(places)
    # within 1: the eight 9 each; 1 sees 8 + itself + 2; 2 sees 1, itself, 2.5; 2.5 two; 100 one
    assert concentration_score(between, 1.0) == (8 * 9 + 10 + 3 + 2 + 1) / 12
    # within 2: the eight 10; 1 sees 11; 2 sees 11; 2.5 sees itself, 1 and 2: 3; 100 one
    assert filter_weights(between, 1.0).tolist() == [1.0] * 10 + [0.0, 0.0]


@pytest.mark.parametrize(("near", "weight"), [(6, 0.0), (7, 0.5), (8, 1.0)])
def test_weights_rise_from_half_to_two_thirds(near: int, weight: float) -> None:
    """Of twelve users, `near` at one place and the others far from everybody."""
    places = torch.tensor([0.0] * near + [10.0 * i for i in range(1, 13 - near)])[:, None]
    expected = [weight] * near + [0.0] * (12 - near)
    assert filter_weights(distances(places), 1.0).tolist() == pytest.approx(expected)


def test_a_replaced_user_moves_the_score_by_less_than_its_sensitivity() -> None:
    together = torch.zeros(50, 3)
    gone = together.clone()
    gone[7] = 100.0
    scores = [concentration_score(distances(rows), 1.0) for rows in (together, gone)]
    assert scores[0] - scores[1] == pytest.approx(2 * 49 / 50)
    assert scores[0] - scores[1] < SCORE_SENSITIVITY


@pytest.mark.parametrize("source", [stream(1, "part"), secret_stream()], ids=["s", "os"])
def test_laplace_noise(source: np.random.Generator) -> None:
    sample = np.array([laplace(3.0, source) for _ in range(DRAWS)])
    assert stats.kstest(sample, stats.laplace(scale=3.0).cdf).pvalue > 1e-4
    for wrong in (2.5, 3.6):
        assert stats.kstest(sample, stats.laplace(scale=wrong).cdf).pvalue < 1e-4
    assert stats.kstest(sample, stats.norm(0.0, 3.0 * math.sqrt(2)).cdf).pvalue < 1e-4


def test_laplace_noise_reaches_as_far_as_its_price_says() -> None:
    """106 bits: at most 73 scales, and the law beyond is counted as a test that is wrong."""

    class Least:
        def random(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            return np.array([0.0, 0.5][:size])

    assert laplace(1.0, Least()) == pytest.approx(-107 * math.log(2.0) - math.log(0.5), rel=0.01)
    sure = ConcentratedSampling(10**9, 1.0, 9)
    assert failure_probability(sure) == pytest.approx(10 * 2.0**-104)


def pass_probability(gap: float, epsilon: float, of_threshold: float, of_score: float) -> float:
    """P(ν - ρ >= gap), by integration over ρ; scales as multiples of Δ/ε."""
    rho = stats.laplace(scale=of_threshold * SCORE_SENSITIVITY / epsilon)
    nu = stats.laplace(scale=of_score * SCORE_SENSITIVITY / epsilon)
    value, _ = integrate.quad(
        lambda r: rho.pdf(r) * nu.sf(gap + r), -400, 400, points=[0.0, -gap], limit=400
    )
    return float(value)


@pytest.mark.parametrize("score", [70.0, 80.0, 90.0])
def test_the_test_halts_as_often_as_it_should(score: float) -> None:
    """Scores 10 below, at and 10 above the threshold of 100 users; and other scales are seen."""
    test, source = halting_test(100, 1.0), stream(2, "part")
    passed = sum(test.passes(score, test.noisy_threshold(source), source) for _ in range(DRAWS))

    def p_value(of_threshold: float, of_score: float) -> float:
        expected = pass_probability(80.0 - score, 1.0, of_threshold, of_score)
        return float(stats.binomtest(passed, DRAWS, expected).pvalue)

    assert p_value(2.0, 4.0) > 1e-4
    if score != 80.0:  # there it is a fair coin whatever the scales
        assert p_value(1.0, 2.0) < 1e-4
        assert p_value(2.0, 2.0) < 1e-4


def test_one_threshold_serves_a_run() -> None:
    """With one draw of ρ rounds agree more often than with a fresh one each: seen in pairs."""
    test, source = AboveThreshold(1.0, 0.0), stream(3, "part")
    both = sum(
        all(test.passes(0.0, threshold, source) for _ in range(2))
        for threshold in (test.noisy_threshold(source) for _ in range(DRAWS))
    )
    assert stats.binomtest(both, DRAWS, 0.25).pvalue < 1e-4
