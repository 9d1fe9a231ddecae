"""Balanced sampling: never below what quadrature or Monte Carlo proves, and not far above.

The likelihood ratio of a pass is the mean of its rounds' log-normals, that of a run their product.
For a pass of two or three rounds its divergences are integrals of a formula; else they are means of
numbers in [0, 1], which Monte Carlo bounds from below.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import dp_accounting
import numpy as np
import numpy.typing as npt
import pytest
from scipy import special

from fedsim.accounting import accountants
from fedsim.accounting.accountants import accountant_of
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.events import RoundCost
from fedsim.accounting.methods import random_allocation as module
from fedsim.accounting.methods.composition import ComposedPld
from fedsim.errors import ConfigError
from fedsim.sampling import BalancedSampling, Relation

Array = npt.NDArray[np.float64]

SAMPLES = 200_000
MISSED = 1e-7  # how often Monte Carlo's lower bound is above the truth
GRID = 6e-3  # relative: what two grids of an ε can differ by


def costs(sampling: BalancedSampling, noise: float) -> tuple[tuple[RoundCost, int], ...]:
    return ((RoundCost(sampling, noise), sampling.rounds),)


def composed(sampling: BalancedSampling, noise: float, fineness: float) -> ComposedPld:
    return module.composed(costs(sampling, noise), fineness)


def epsilon(sampling: BalancedSampling, noise: float, at: float) -> float:
    return accountants.epsilon(RoundCost(sampling, noise), sampling.rounds, at)


def delta(sampling: BalancedSampling, noise: float, at: float) -> float:
    return accountants.delta(RoundCost(sampling, noise), sampling.rounds, at)


def stop_loss(bound: Array, noise: float, sign: float) -> Array:
    """E (sign (X - bound))+ for the log-normal X of mean 1: Black and Scholes's formula."""
    near = np.log(np.maximum(bound, 1e-300)) * noise
    above, at = (special.ndtr(sign * (x / noise - near)) for x in (0.5, -0.5))
    outside = np.maximum(sign * (1.0 - bound), 0.0)  # X is never below a bound under 0
    return np.where(bound > 0.0, sign * (above - bound * at), outside)


@functools.lru_cache(maxsize=1)
def other_rounds(rounds: int, noise: float) -> tuple[Array, Array]:
    """Sums of all log-normals but the last, at the points of the rule, and the points' weights.

    Of two others one is never the smaller: each such pair stands for both orders. With much noise
    integrands are as wide as a normal density, and fewer points give the same to 13 digits.
    """
    points = (4001 if rounds == 2 else 1201) if noise < 3.0 else 401
    z = np.linspace(-13.0 - 1.0 / noise, 13.0 + 1.0 / noise, points)
    weights = np.exp(-(z**2) / 2.0) / math.sqrt(2.0 * math.pi) * (z[1] - z[0])
    ratios = np.exp(z / noise - 0.5 / noise**2)
    if rounds == 2:
        return ratios, weights
    one, other = np.triu_indices(points)
    orders = np.where(one == other, 1.0, 2.0)
    return ratios[one] + ratios[other], orders * weights[one] * weights[other]


def quadrature(rounds: int, noise: float, at: float) -> tuple[float, float]:
    """Both divergences, removing and adding, of one of two or three rounds; by the trapezium rule.

    The last log-normal is integrated by the formula, and the rule is exact to rounding for the
    others, whose integrands are smooth and vanish at both ends.
    """
    sums, weights = other_rounds(rounds, noise)
    remove = stop_loss(rounds * math.exp(at) - sums, noise, 1.0)
    add = stop_loss(rounds * math.exp(-at) - sums, noise, -1.0)
    return float(weights @ remove) / rounds, float(weights @ add) / rounds * math.exp(at)


@functools.lru_cache(maxsize=1)  # of several ε in a row
def drawn_losses(rounds: int, taken: int, noise: float, samples: int) -> tuple[Array, Array]:
    """Losses of removing and of adding, (samples,) each, of the same normals.

    By symmetry, the user takes part in each pass's first round, which multiplies its ratio.
    """
    source = np.random.default_rng([rounds, taken, round(1e4 * noise)])
    normals = source.standard_normal((samples, rounds))
    ratios = np.exp(normals / noise - 0.5 / noise**2)
    remove, add = np.zeros(samples), np.zeros(samples)
    for of_pass in np.array_split(ratios, taken, axis=1):  # of two lengths, where none is whole
        without = of_pass.mean(axis=1)
        remove += np.log(without + math.expm1(noise**-2) * of_pass[:, 0] / of_pass.shape[1])
        add -= np.log(without)
    return remove, add


def lower(
    rounds: int, taken: int, noise: float, at: float, samples: int = SAMPLES
) -> tuple[float, float]:
    """Lower bounds on both divergences by Monte Carlo, removing and adding.

    By the empirical Bernstein bound (Maurer and Pontil 2009, Theorem 4) for numbers in [0, 1].
    """
    bounds = []
    for loss in drawn_losses(rounds, taken, noise, samples):
        values = np.maximum(-np.expm1(at - loss), 0.0)
        log = math.log(2.0 / MISSED)
        spread = math.sqrt(2.0 * float(values.var(ddof=1)) * log / samples)
        bounds.append(float(values.mean()) - spread - 7.0 * log / (3.0 * (samples - 1)))
    return bounds[0], bounds[1]


@pytest.mark.parametrize("noise", [0.3, 0.7, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("rounds", [2, 3])
def test_one_of_two_and_of_three_rounds_against_quadrature(rounds: int, noise: float) -> None:
    sides = composed(BalancedSampling(rounds, 1), noise, 1 / 64).directions
    for at in np.array([0.0, 0.1, 0.5, 1.0, 2.0]) / noise:
        for side, exact in zip(sides, quadrature(rounds, noise, float(at)), strict=True):
            if exact > 1e-11:  # below, the rule's own rounding shows
                assert exact * (1.0 - 1e-9) <= side.delta(float(at)) <= exact * 1.005


@pytest.mark.parametrize("rounds", [2, 3])
def test_tails_that_are_cut_are_charged(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TAIL", 1e-3)
    sides = module.composed.__wrapped__(costs(BalancedSampling(rounds, 1), 1.0), 1 / 64).directions
    for side in sides:
        assert side.infinite > 1e-4
        assert side.parts[0].probabilities.sum() + side.infinite >= 1.0
    for at in (0.0, 0.5, 1.0, 2.0, 3.0):
        for side, exact in zip(sides, quadrature(rounds, 1.0, at), strict=True):
            assert exact * (1.0 - 1e-9) <= side.delta(at) <= exact + 0.01


@pytest.mark.parametrize("noise", [0.5, 2.0])
@pytest.mark.parametrize("rounds", [2, 3])
def test_epsilon_against_quadrature(rounds: int, noise: float) -> None:
    for at in (1e-9, 1e-4, 0.01):
        found = epsilon(BalancedSampling(rounds, 1), noise, at)
        assert max(quadrature(rounds, noise, found)) <= at * (1.0 + 1e-3)
        assert max(quadrature(rounds, noise, found * 0.99)) > at


def by_fourier(rounds: int, noise: float, at: float) -> tuple[float, float]:
    """The same of one of many rounds: the sum's law by FFT on an even grid, close and no bound."""
    points = np.linspace(0.0, 400.0, (1 << 20) + 1)
    logs = np.log(np.maximum(points, 1e-300)) * noise
    mass, mean = (np.diff(special.ndtr(logs + sign * 0.5 / noise)) for sign in (1.0, -1.0))
    up = (mean - mass * points[:-1]) / points[1]
    law = np.append(mass - up, 0.0) + np.append(0.0, up)
    total = np.fft.irfft(np.fft.rfft(law[:-1]) ** rounds, len(points) - 1)
    ratios = points[:-1] / rounds
    excess = (ratios - math.exp(at), 1.0 - math.exp(at) * ratios)
    return tuple(float(total @ np.maximum(part, 0.0)) for part in excess)  # type: ignore[return-value]


@pytest.mark.parametrize(("rounds", "noise"), [(20, 1.0), (64, 1.0), (99, 2.0)])
def test_one_of_many_rounds_against_a_fourier_transform(rounds: int, noise: float) -> None:
    sides = composed(BalancedSampling(rounds, 1), noise, 1 / 32).directions
    for at in (0.0, 0.1, 0.2):
        for side, close in zip(sides, by_fourier(rounds, noise, at), strict=True):
            assert close <= side.delta(at) <= close * 1.02


RANDOM = [
    (int(size * passes), int(passes), float(noise), float(at))
    for size, passes, noise, at in zip(
        np.random.default_rng(5).integers(1, 13, 4),
        np.random.default_rng(6).integers(1, 5, 4),
        np.exp(np.random.default_rng(7).uniform(math.log(0.4), math.log(4.0), 4)),
        np.random.default_rng(8).uniform(0.0, 1.5, 4),
        strict=True,
    )
]


# Passes of two lengths: of 1 and 2 rounds, 2 and 3, 14 and 15; all but one of the rounds.
UNEVEN = [(3, 2, 0.7, 1.0), (5, 2, 0.5, 0.5), (100, 7, 0.8, 0.3), (8, 7, 2.0, 0.5)]


@pytest.mark.parametrize(("rounds", "taken", "noise", "at"), [*RANDOM, *UNEVEN, (100, 1, 0.3, 0.5)])
def test_never_below_monte_carlo(rounds: int, taken: int, noise: float, at: float) -> None:
    sides = composed(BalancedSampling(rounds, taken), noise, 1 / 16).directions
    for side, least in zip(sides, lower(rounds, taken, noise, at), strict=True):
        assert side.delta(at) >= least


@pytest.mark.parametrize(
    ("rounds", "taken", "wrong"),
    [
        (2, 1, (3, 1)),
        (5, 1, (6, 1)),
        (20, 1, (24, 1)),
        (6, 3, (6, 2)),
        (12, 6, (12, 4)),
        (5, 2, (6, 2)),
    ],
)
def test_prices_that_are_too_small_are_caught(
    rounds: int, taken: int, wrong: tuple[int, int]
) -> None:
    """The price of a round more, of fewer passes, or of adding instead of removing."""
    noise, at = 0.6, 1.0
    least = lower(rounds, taken, noise, at, 4 * SAMPLES)[0]
    own = composed(BalancedSampling(rounds, taken), noise, 1 / 64).directions
    other = composed(BalancedSampling(*wrong), noise, 1 / 64).directions
    assert own[0].delta(at) >= least
    assert other[0].delta(at) < least
    assert taken > 1 or own[1].delta(at) < least


@pytest.mark.parametrize(("rounds", "noise"), [(1, 0.5), (1, 5.0), (7, 1.0), (400, 10.0)])
def test_everybody_every_round_is_the_gaussian_mechanism(rounds: int, noise: float) -> None:
    for at in (1e-9, 1e-4):
        exact = dp_accounting.get_epsilon_gaussian(noise / math.sqrt(rounds), at)
        found = epsilon(BalancedSampling(rounds, rounds), noise, at)
        assert exact * (1 - 1e-9) <= found <= exact * (1 + GRID)
        assert at <= delta(BalancedSampling(rounds, rounds), noise, exact) <= at * 1.03


def test_passes_of_two_lengths_cost_between_those_of_one() -> None:
    """And the price is of the passes, one by one: as of two runs of one length each."""
    found = epsilon(BalancedSampling(100, 7), 0.8, 1e-6)
    assert epsilon(BalancedSampling(105, 7), 0.8, 1e-6) < found
    assert found < epsilon(BalancedSampling(98, 7), 0.8, 1e-6)
    parts = [(RoundCost(BalancedSampling(*which), 0.8), which[0]) for which in ((70, 5), (30, 2))]
    assert found == pytest.approx(accountants.epsilon_of_composition(parts, 1e-6), rel=GRID)


@pytest.mark.parametrize("rounds", [1, 60, 1000])
def test_monotone_in_noise_delta_and_participations(rounds: int) -> None:
    half = BalancedSampling(rounds, max(1, rounds // 2))
    noises = [epsilon(half, noise, 1e-6) for noise in (0.04, 0.05, 0.3, 1.0, 1.1, 5.0, 50.0)]
    deltas = [epsilon(half, 1.0, at) for at in (1e-12, 1e-9, 1e-6, 1e-5, 0.1)]
    counts = [count for count in (1, 2, 4, 20, 500, 1000) if rounds % count == 0]
    taken = [epsilon(BalancedSampling(rounds, count), 1.0, 1e-6) for count in counts]
    for values in (noises, deltas, taken[::-1]):
        for more, less in itertools.pairwise(values):
            assert less <= more * (1.0 + GRID)
        assert len(values) == 1 or values[-1] < values[0]


def test_calibration_is_on_the_safe_side() -> None:
    allocation = BalancedSampling(200, 8)
    noise = calibrate_noise_multiplier(sampling=allocation, rounds=200, epsilon=2.0, delta=1e-6)
    assert 2.0 * (1.0 - 5e-3) <= epsilon(allocation, noise, 1e-6) <= 2.0
    with pytest.raises(ConfigError, match="'random-allocation' cannot certify this"):
        calibrate_noise_multiplier(sampling=allocation, rounds=200, epsilon=2.0, delta=1e-20)


@pytest.mark.parametrize("noise", [0.04, 1.0])
def test_runs_of_different_prices_compose(noise: float) -> None:
    """Independent allocations, never below either alone, and as one of twice the passes."""
    one, other = (RoundCost(BalancedSampling(*which), noise) for which in ((60, 3), (40, 2)))
    together = accountants.epsilon_of_composition([(one, 60), (other, 40)], 1e-6)
    assert together == pytest.approx(epsilon(BalancedSampling(100, 5), noise, 1e-6), rel=GRID)
    mixed = [(one, 60), (RoundCost(BalancedSampling(40, 2), 2.0 * noise), 40)]
    assert epsilon(BalancedSampling(60, 3), noise, 1e-6) < (
        accountants.epsilon_of_composition(mixed, 1e-6)
    )
    assert accountants.epsilon_of_composition(mixed, 1e-6) < together
    assert accountants.epsilon(one, 1, 1e-6) == accountants.epsilon(one, 60, 1e-6)
    assert accountants.epsilon(one, 61, 1e-6) == accountants.epsilon(one, 120, 1e-6)


@pytest.mark.parametrize("order", [1.5, 3.0, 5.0])
def test_the_price_in_a_filter_is_no_less_than_the_exact_divergence(order: float) -> None:
    """Of one pass of two rounds, by quadrature; and passes add up.

    At higher orders the moment is that of tails, which are charged as infinite losses instead.
    """
    noise = 1.0
    z = np.linspace(-12.0, 12.0 + order, 801)  # the integrand is as smooth as a density
    weight = np.exp(-(z**2) / 2.0) / math.sqrt(2.0 * math.pi) * (z[1] - z[0])
    ratio = np.exp(z / noise - 0.5 / noise**2)
    mean = (ratio[:, None] + ratio[None, :]) / 2.0
    under = np.outer(weight, weight)
    exact = max(
        math.log(float((under * mean**power).sum())) / (order - 1.0)
        for power in (order, 1.0 - order)
    )
    renyi, relation = accountant_of("random-allocation").renyi, Relation.ADD_OR_REMOVE
    found, infinite = renyi(RoundCost(BalancedSampling(2, 1), noise), relation, order)
    twice, _ = renyi(RoundCost(BalancedSampling(4, 2), noise), relation, order)
    assert infinite < 1e-17
    assert exact * (1.0 - 1e-9) <= found <= exact * 1.01
    assert twice == pytest.approx(2.0 * found)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((5, 6), "participations = 6: give a number from 1 to rounds = 5"),
        ((0, 1), "participations = 1: give a number from 1 to rounds = 0"),
    ],
)
def test_bad_input_is_named(fields: tuple[Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BalancedSampling(*fields)
