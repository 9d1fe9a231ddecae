"""The planning numbers against sampled noise, against each other, and at their edges."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from fedsim.accounting.planning import (
    delta_of_population,
    delta_sentence,
    els_adds_no_more_noise,
    els_noise_stddev,
    equal_compute_probability,
    signal_to_noise,
    uls_noise_stddev,
    variance_ratio,
)
from fedsim.errors import ConfigError


def test_noise_of_a_mean_is_the_noise_of_the_sum_over_the_count() -> None:
    """Eqs 5 and 6: what Algorithms 1 and 2 add to the sum, divided by B and by M."""
    rng = np.random.default_rng(3)
    sampled = rng.normal(0.0, 1.5 * 10.0, size=200_000)  # stddev: multiplier times clip norm
    els = els_noise_stddev(noise_multiplier=1.5, l2_clip_norm=10.0, batch_size=64.0)
    uls = uls_noise_stddev(noise_multiplier=1.5, l2_clip_norm=10.0, cohort_size=8.0)
    assert els == pytest.approx(float(np.std(sampled / 64.0)), rel=0.01)
    assert uls == pytest.approx(float(np.std(sampled / 8.0)), rel=0.01)
    assert els_noise_stddev(noise_multiplier=0.0, l2_clip_norm=1.0, batch_size=1.0) == 0.0


@pytest.mark.parametrize("els_multiplier", [0.7, 3.0, 7.9, 8.1, 40.0])
@pytest.mark.parametrize("group_size", [1, 8, 32])
@pytest.mark.parametrize("diversity", [1.0, 0.25])
def test_condition_7_is_the_comparison_of_variances(
    els_multiplier: float, group_size: int, diversity: float
) -> None:
    cohort = 16.0
    els = els_noise_stddev(
        noise_multiplier=els_multiplier, l2_clip_norm=10.0, batch_size=cohort * group_size
    )
    uls = uls_noise_stddev(noise_multiplier=1.0, l2_clip_norm=10.0 * diversity, cohort_size=cohort)
    assert els_adds_no_more_noise(
        els_noise_multiplier=els_multiplier,
        els_l2_clip_norm=10.0,
        uls_noise_multiplier=1.0,
        uls_l2_clip_norm=10.0 * diversity,
        uls_group_size=group_size,
    ) == (variance_ratio(els_stddev=els, uls_stddev=uls) <= 1.0)


def test_equality_counts_as_no_more_noise() -> None:
    assert els_adds_no_more_noise(
        els_noise_multiplier=8.0,
        els_l2_clip_norm=2.0,
        uls_noise_multiplier=1.0,
        uls_l2_clip_norm=2.0,
        uls_group_size=8,
    )


def test_both_probabilities_make_a_round_of_the_same_number_of_gradients() -> None:
    p = equal_compute_probability(gradients_per_round=512, group_size=32, num_users=1024)
    q = equal_compute_probability(gradients_per_round=512, group_size=8, num_users=1024)
    assert p * 1024 * 32 == pytest.approx(512)  # every example flips a coin
    assert q * 1024 * 8 == pytest.approx(512)  # every drawn user brings eight
    assert equal_compute_probability(gradients_per_round=8, group_size=2, num_users=4) == 1.0
    with pytest.raises(ConfigError, match=r"gradients_per_round = 9: 4 users with 2 examples each"):
        equal_compute_probability(gradients_per_round=9, group_size=2, num_users=4)


def test_signal_to_noise_is_a_ratio_of_norms() -> None:
    rng = np.random.default_rng(5)
    norms = np.linalg.norm(rng.normal(0.0, 0.3, size=(2_000, 400)), axis=1)
    expected = 6.0 / math.sqrt(float(np.mean(norms**2)))
    found = signal_to_noise(mean_gradient_norm=6.0, noise_stddev=0.3, num_parameters=400)
    assert found == pytest.approx(expected, rel=0.01)
    assert signal_to_noise(mean_gradient_norm=0.0, noise_stddev=0.3, num_parameters=4) == 0.0


def test_delta_of_a_population_is_below_one_user_in_n() -> None:
    assert delta_of_population(10**5) == pytest.approx(10**-5.5)
    assert delta_of_population(1000, exponent=2.0) == pytest.approx(1e-6)
    assert all(delta_of_population(n) < 1 / n for n in (2, 900, 10**9))


def test_the_sentence_names_n_its_origin_and_the_power() -> None:
    public = delta_sentence(10**-6.6, 10**6, public=True)
    assert public.startswith("δ = 2.51e-07 is n^-1.1 for n = 1,000,000 users, a number declared")
    assert "private" not in public
    assert "Warning" not in public
    counted = delta_sentence(1e-4, 898, public=False)
    assert "for n = 898 users, counted in the private data" in counted
    assert "Warning" not in counted


@pytest.mark.parametrize(("delta", "warns"), [(1e-3, True), (2e-3, True), (0.99e-3, False)])
def test_a_delta_of_one_over_n_or_more_is_warned_of(delta: float, warns: bool) -> None:
    assert ("Warning: δ is not below 1/n = 0.001" in delta_sentence(delta, 1000, True)) == warns


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda: delta_of_population(1), "num_users = 1"),
        (lambda: delta_of_population(1000, exponent=-1.0), "exponent = -1.0"),
        (lambda: delta_of_population(1000, exponent=math.inf), "exponent = inf"),
        (lambda: delta_of_population(1000, exponent=500.0), "exponent = 500.0"),
        (lambda: delta_sentence(0.0, 1000, True), "delta = 0.0"),
        (lambda: delta_sentence(1e-5, 1, True), "num_users = 1"),
        (
            lambda: els_noise_stddev(noise_multiplier=-1.0, l2_clip_norm=1.0, batch_size=1.0),
            "noise_multiplier = -1.0",
        ),
        (
            lambda: els_noise_stddev(noise_multiplier=1.0, l2_clip_norm=math.nan, batch_size=1.0),
            "l2_clip_norm = nan",
        ),
        (
            lambda: uls_noise_stddev(noise_multiplier=1.0, l2_clip_norm=1.0, cohort_size=0.0),
            "cohort_size = 0.0",
        ),
        (lambda: variance_ratio(els_stddev=1.0, uls_stddev=0.0), "uls_stddev = 0.0"),
        (
            lambda: signal_to_noise(mean_gradient_norm=-1.0, noise_stddev=1.0, num_parameters=1),
            "mean_gradient_norm = -1.0",
        ),
        (
            lambda: equal_compute_probability(gradients_per_round=1, group_size=0, num_users=1),
            "group_size = 0",
        ),
    ],
)
def test_wrong_numbers_are_named(wrong: Callable[[], object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        wrong()
    assert str(caught.value).startswith(field)
