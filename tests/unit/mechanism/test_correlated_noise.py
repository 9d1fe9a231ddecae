"""Correlated noise: matrices, how far a unit moves what they multiply, and noise made from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import optimize, special, stats

from fedsim.accounting.events import RoundCost
from fedsim.clip_policy import AdaptiveClip, ClipSchedule
from fedsim.estimators import FixedDenominator, WeightedSum
from fedsim.noise.gaussian import CHUNK, Normals, chunks_of, release_
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix, banded_matrix, buffered_matrix
from fedsim.noise.memory import NoiseMemory
from fedsim.plan import RoundPlan
from fedsim.release import Release
from fedsim.sampling import CyclicSampling, PoissonSampling
from fedsim.seeding import NoiseKey, noise_key
from fedsim.tensors import one_thread_an_operation
from tests.unit.mechanism.test_plan import make_plan

Array = npt.NDArray[np.float64]


def dense(column: Array) -> Array:
    """Return the lower-triangular Toeplitz matrix of a column."""
    size = len(column)
    places = np.subtract.outer(np.arange(size), np.arange(size))
    return np.where(places >= 0, column[np.maximum(places, 0)], 0.0)


def error_of(column: Array, separation: int) -> float:
    """Return prefix sums' root mean square noise, by whole matrices."""
    size = len(column)
    matrix = dense(column)
    together = matrix[:, ::separation].sum(axis=1)  # a unit of every `separation`-th round
    moved = np.linalg.norm(together) / math.sqrt(-(-size // separation))
    noise = np.tri(size) @ np.linalg.inv(matrix)
    return float(moved * np.linalg.norm(noise) / math.sqrt(size))


BANDED = [(8, 2), (8, 8), (12, 3), (16, 4), (20, 5), (24, 2), (24, 8), (30, 7), (40, 4), (48, 12)]
BUFFERED = [(12, 3), (16, 16), (20, 5), (24, 4), (24, 24), (30, 7), (32, 8), (36, 6), (40, 10)]


@pytest.mark.parametrize(("rounds", "bands"), BANDED)
def test_banded_matrices_have_the_error_that_they_say(rounds: int, bands: int) -> None:
    """That no other has less is asked in tests/golden/test_matrix_reference.py."""
    matrix = banded_matrix(rounds, bands)
    column = np.concatenate([[1.0], matrix.feedback, np.zeros(rounds - bands)])
    assert matrix.error_over(matrix.rounds) == pytest.approx(error_of(column, rounds), rel=1e-9)
    assert matrix.error_over(matrix.rounds) < 0.99 * INDEPENDENT.error_over(rounds)


@pytest.mark.parametrize(("rounds", "separation"), [*BUFFERED, (48, 9)])
def test_buffered_matrices_are_as_good_as_another_optimiser_finds(
    rounds: int, separation: int
) -> None:
    def error(point: Array) -> float:
        weights, decays = np.square(point[:2]), special.expit(point[2:])
        column = np.concatenate([[1.0], weights @ decays[:, None] ** np.arange(rounds - 1)])
        return error_of(column, separation)

    starts = ([0.5, 0.5, 0.0, 2.0], [0.7, 0.3, -1.0, 3.0])
    found = min(
        optimize.minimize(
            error, np.array(start), method="Nelder-Mead", options={"maxfev": 4000, "fatol": 1e-9}
        ).fun
        for start in starts
    )
    matrix = buffered_matrix(rounds, separation, 2)
    assert matrix.error_over(matrix.rounds) == pytest.approx(
        error_of(matrix.column(rounds), separation)
    )
    assert matrix.error_over(matrix.rounds) <= 1.001 * found


@pytest.mark.parametrize("matrix", [banded_matrix(12, 4), buffered_matrix(12, 4, 2)])
def test_no_unit_moves_more_than_the_amplification_pays_for(matrix: NoiseMatrix) -> None:
    """Directions and lengths of a unit's updates may be anything, in any turn of any group."""
    rng, column = np.random.default_rng(0), matrix.column(12)
    bound = matrix.amplification * math.sqrt(3)
    for trial in range(300):
        updates = np.zeros((12, 5))
        turns = np.arange(trial % 4, 12, 4)
        updates[turns] = rng.normal(size=(len(turns), 5)) * rng.integers(0, 2, (len(turns), 1))
        updates /= np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), 1e-9)
        assert np.linalg.norm(dense(column) @ updates) <= bound * (1 + 1e-12)
    most = np.zeros((12, 1))
    most[::4] = 1.0
    assert np.linalg.norm(dense(column) @ most) == pytest.approx(bound)
    most[3] = 1.0  # a round too early: more than is paid for
    assert np.linalg.norm(dense(column) @ most) > 1.05 * bound


def key(round: int) -> NoiseKey:
    return noise_key(7, "noise", round)


def noises(
    matrix: NoiseMatrix, rounds: int, size: int, stddev: float = 1.0, growth: float = 1.0
) -> Array:
    """Return (rounds, size): what is released of zeros; each round has `growth` times the noise."""
    memory, layout = NoiseMemory(), {"w": torch.zeros(size)}
    released = []
    for t in range(rounds):
        earlier = memory.before(t, matrix, key, layout) if matrix.feedback else None
        scaled = stddev * growth**t
        released.append(release_(layout, 1.0, scaled, key(t), earlier)[0]["w"].numpy())
    return np.stack(released)


MATRICES = {"banded": banded_matrix(9, 3), "blt": buffered_matrix(9, 3, 2)}


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_noise_is_the_inverse_matrix_times_independent_noise(matrix: NoiseMatrix) -> None:
    fresh = noises(INDEPENDENT, 9, 1000)
    expected = matrix.amplification * np.linalg.inv(dense(matrix.column(9))) @ fresh
    np.testing.assert_allclose(noises(matrix, 9, 1000), expected, atol=2e-4)  # the grid


@pytest.mark.parametrize("matrix", [INDEPENDENT, *MATRICES.values()], ids=["none", *MATRICES])
def test_a_release_of_noise_alone_is_as_long_as_its_noise(matrix: NoiseMatrix) -> None:
    plan = correlated_plan(matrix) if matrix.feedback else make_plan()
    released = torch.from_numpy(noises(matrix, 9, 40_000, stddev=plan.noise_stddev))
    ratios = [plan.over_noise(Release({"w": each}), round) for round, each in enumerate(released)]
    assert ratios == pytest.approx([1.0] * 9, rel=0.02)  # ± 0.4 %


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_noise_is_correlated_in_units_of_each_rounds_own(matrix: NoiseMatrix) -> None:
    """As on a schedule of clips: what a round takes back is in units of the clip of today."""
    moving, growth = noises(matrix, 9, 1000, growth=0.7), 0.7 ** np.arange(9)[:, None]
    np.testing.assert_allclose(moving / growth, noises(matrix, 9, 1000), atol=2e-4)  # the grid


def test_one_band_is_independent_noise_to_the_bit() -> None:
    assert banded_matrix(9, 1) is INDEPENDENT
    plan = correlated_plan(banded_matrix(9, 1))
    assert plan.earlier_noise(4, WeightedSum({"w": torch.zeros(3)})) is None


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_noise_is_the_same_wherever_a_process_takes_it_up(matrix: NoiseMatrix) -> None:
    """After a kill, when a round is done again, after another run's, and by any threads."""
    size = 2 * CHUNK + 17
    whole = noises(matrix, 7, size)
    memory, layout = NoiseMemory(), {"w": torch.zeros(size)}
    for round in (5, 2, 3, 3, 6):
        again = memory.before(round, matrix, key, layout)
        release, _ = release_(layout, 1.0, 1.0, key(round), again)
        assert (release["w"].numpy() == whole[round]).all()
    some = chunks_of({"w": torch.zeros(size, dtype=torch.float64)})[1]  # and then it is broken off
    memory.before(4, matrix, key, layout).next_(some, Normals(CHUNK), key(4))
    release, _ = release_(layout, 1.0, 1.0, key(4), memory.before(4, matrix, key, layout))
    assert (release["w"].numpy() == whole[4]).all()
    memory.before(7, matrix, lambda round: noise_key(8, "noise", round), layout)
    release, _ = release_(layout, 1.0, 1.0, key(6), memory.before(6, matrix, key, layout))
    assert (release["w"].numpy() == whole[6]).all()
    with one_thread_an_operation():
        assert (noises(matrix, 3, size) == whole[:3]).all()


def covariance_fits(seen: Array, expected: Array) -> bool:
    """Whether (rounds, n) draws have a covariance: each entry within its error, Bonferroni."""
    count = seen.shape[1]
    gap = seen @ seen.T / count - expected
    spread = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / count)
    values = 2.0 * stats.norm.sf(np.abs(gap / spread))
    return bool(values.min() * values.size > 1e-4)


@pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
def test_the_covariance_over_rounds_is_the_matrix_and_no_other(matrix: NoiseMatrix) -> None:
    seen = noises(matrix, 9, 40_000, 0.5) / 0.5

    def covariance(column: Array, amplification: float) -> Array:
        inverse = np.linalg.inv(dense(column))
        return amplification**2 * inverse @ inverse.T

    column = matrix.column(9)
    assert covariance_fits(seen, covariance(column, matrix.amplification))
    assert not covariance_fits(seen, np.eye(9) * matrix.amplification**2)
    assert not covariance_fits(seen, np.eye(9))
    assert not covariance_fits(seen, covariance(column, 1.0))
    shifted = np.concatenate([[1.0, 0.0], column[1:-1]])
    assert not covariance_fits(seen, covariance(shifted, matrix.amplification))
    assert not covariance_fits(noises(INDEPENDENT, 9, 40_000), np.eye(9) * 1.05)


def correlated_plan(matrix: NoiseMatrix, **changes: Any) -> RoundPlan:  # noqa: ANN401
    sampling = CyclicSampling(9, 3, 1.0)
    fields = {"sampling": sampling, "estimator": FixedDenominator(sampling.probability, 20)}
    return make_plan(**{**fields, "matrix": matrix, **changes})


UNPROVED: dict[str, tuple[NoiseMatrix, dict[str, Any]]] = {
    "rounds that may be next to each other": (
        MATRICES["banded"],
        {"sampling": PoissonSampling(0.25), "estimator": FixedDenominator(0.25, 20)},
    ),
    "fewer groups than bands": (banded_matrix(9, 4), {}),
    "a matrix of another run": (banded_matrix(10, 3), {}),
    "a matrix of another separation": (buffered_matrix(9, 2, 2), {}),
    "coins with overlapping columns": (
        MATRICES["blt"],
        {"sampling": CyclicSampling(9, 3, 0.75), "estimator": FixedDenominator(0.25, 20)},
    ),
    "a clip that follows counts": (
        MATRICES["banded"],
        {"clip_policy": AdaptiveClip(0.5, 0.2, 5.0, 100.0)},
    ),
}


@pytest.mark.parametrize(("matrix", "changes"), UNPROVED.values(), ids=UNPROVED)
def test_what_the_price_does_not_cover_is_refused(
    matrix: NoiseMatrix, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=f"privacy.mechanism = '{matrix.kind}': "):
        correlated_plan(matrix, **changes)
    correlated_plan(MATRICES[matrix.kind])


def test_a_schedule_of_clips_and_the_price_of_whole_groups_are_taken() -> None:
    halved = correlated_plan(MATRICES["banded"], clip_policy=ClipSchedule("linear", 0.5, 9))
    assert halved.cost == correlated_plan(MATRICES["banded"]).cost
    sampling = CyclicSampling(9, 3, 0.75, priced_rate=1.0)
    coins = correlated_plan(
        MATRICES["blt"], sampling=sampling, estimator=FixedDenominator(0.25, 20)
    )
    assert RoundCost.from_json(coins.cost.to_json()) == coins.cost


@pytest.mark.parametrize(
    "make",
    [
        lambda: banded_matrix(8, 9),
        lambda: banded_matrix(8, 0),
        lambda: buffered_matrix(8, 9, 2),
        lambda: buffered_matrix(8, 4, 7),
    ],
)
def test_matrices_out_of_range(make: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=r"give an integer from 1 to"):
        make()
