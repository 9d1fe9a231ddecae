"""Matrices that correlate the noise of a run's rounds, and the resulting error.

With independent noise, the model at round t contains the sum of t draws. A matrix mechanism
(Denisov et al. 2022, arXiv:2202.08312) adds C⁻¹z instead of z, with C lower-triangular and z
independent. Later rounds subtract part of earlier noise, so prefix sums have a smaller error. The
releases together are as private as C·(updates) + z, so the price depends on how far one unit moves
C·(updates).

Two kinds, both Toeplitz (all columns are one column, shifted):

- *banded* (Choquette-Choo et al. 2023, arXiv:2306.08153; McKenna 2024, arXiv:2405.15913): entries
  of the column are zero from the b-th on. If a unit's rounds are at least b apart, its columns
  share no row. It then moves C·(updates) as in independent rounds, and coins amplify privacy.
- *BLT*, buffered linear Toeplitz (Dvijotham et al. 2024, arXiv:2404.16706; McMahan et al. 2024,
  arXiv:2408.08868): entries Σ αᵢ λᵢ^(t-1), so a few buffers hold the noise of all rounds. Columns
  overlap: a unit that takes part every b-th round moves the sum of those columns. Coins have no
  proved price; with coins, the run costs as much as taking part in every turn.

The clip may follow a public schedule. Estimates are divided by the sensitivity of their round, so
that a unit moves each by at most 1. The matrix applies to these. The result is multiplied by the
sensitivity, a public number, which is post-processing.

Matrices minimise the mean squared error of all prefix sums. This is the error of the parameters
under SGD at a constant rate. Momentum, other optimizers and `[server.schedule]` weight rounds
differently; the matrices are then only a heuristic. They depend on public numbers only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy  # submodules load at first use: workers need none

Array = npt.NDArray[np.float64]

_DIGITS = 5  # significant digits of a coefficient, so that all library versions agree


@dataclass(frozen=True)
class NoiseMatrix:
    """A lower-triangular Toeplitz matrix C with a diagonal of ones, by the recursion of C⁻¹.

    The noise of round t is y_t = a·z_t − Σᵢ feedback[i]·m_i, with new normals z_t and
    a = `amplification`. Without decays, the memory m holds y_(t-1), y_(t-2), …; with decays, it has
    buffers, m_i ← decays[i]·m_i + y_t.

    Attributes:
        kind: "independent", "banded" or "blt".
        rounds: T, number of rounds of the run; 0 for independent noise, which works for any.
        separation: minimum distance between two rounds of one unit.
        feedback: weights of the memory.
        decays: λ of the buffers; empty for a banded matrix.

    Examples:
        >>> matrix = banded_matrix(64, 4)
        >>> len(matrix.feedback), round(matrix.error_over(64) / INDEPENDENT.error_over(64), 2)
        (3, 0.57)
    """

    kind: Literal["independent", "banded", "blt"]
    rounds: int
    separation: int
    feedback: tuple[float, ...] = ()
    decays: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.decays and not all(
            weight >= 0.0 and 0.0 <= decay <= 1.0
            for weight, decay in zip(self.feedback, self.decays, strict=True)
        ):
            raise ValueError(
                f"feedback = {self.feedback}, decays = {self.decays}: overlapping columns have a "
                "price for entries >= 0 only; give weights >= 0 and decays in [0, 1]"
            )

    def column(self, rounds: int) -> Array:
        """Return the first entries of the first column of C, (rounds,)."""
        column = np.zeros(rounds)
        column[0] = 1.0
        if not self.decays:
            some = self.feedback[: rounds - 1]
            column[1 : 1 + len(some)] = some
            return column
        powers = np.arange(rounds - 1)
        for weight, decay in zip(self.feedback, self.decays, strict=True):
            column[1:] += weight * decay**powers
        return column

    def dense(self, rounds: int) -> Array:
        """Return the first rows and columns of C, (rounds, rounds)."""
        column = self.column(rounds)
        dense: Array = scipy.linalg.toeplitz(column, np.zeros(rounds))
        return dense

    @functools.cached_property
    def amplification(self) -> float:
        """Ratio of the noise that a round draws to the priced noise.

        A unit takes part in at most k = ⌈rounds/separation⌉ rounds. In L2, these move C·(updates)
        by at most this factor times the movement of k independent rounds.
        """
        if not self.feedback:
            return 1.0
        return _moved(self.column(self.rounds), self.separation)

    def round_error(self, round: int) -> float:
        """Return the noise in the release of `round`, relative to the priced noise of a round."""
        if not self.feedback:
            return 1.0
        return self.amplification * float(np.linalg.norm(_inverse(self.column(round + 1))))

    def last_error_over(self, rounds: int) -> float:
        """Return the noise in the sum of `rounds` rounds, relative to a round's priced noise."""
        return self.amplification * float(np.linalg.norm(self._sums(rounds)))

    def error_over(self, rounds: int) -> float:
        """Return the root mean square, over `rounds` rounds, of the noise in the prefix sums."""
        return self.amplification * math.sqrt(_mean_square(self._sums(rounds)))

    def _sums(self, rounds: int) -> Array:
        """Return the entries of the first column of (prefix sums)·C⁻¹."""
        return np.cumsum(_inverse(self.column(rounds)))

    def in_words(self, unit: str, apart: int) -> str:
        """Return the noise in words, for reports; "" for independent noise.

        Args:
            unit: the protected party, such as "user".
            apart: minimum distance between two rounds of one unit, at least `separation`.
        """
        if self.kind == "independent":
            return ""
        if self.kind == "banded":
            what = f"by a banded Toeplitz matrix of {len(self.feedback) + 1} bands"
        else:
            what = f"by a Toeplitz matrix of {len(self.decays)} buffers (BLT)"
        times = -(-self.rounds // apart)
        return (
            f"Noise is correlated over the {self.rounds} rounds {what}: later rounds subtract "
            "part of the noise of earlier ones. The noise multiplier is the priced one; each round "
            f"draws {self.amplification:.4g} times that noise. The price assumes that the rounds "
            f"of one {unit}, {times} at most, are {apart} or more apart; the sampler ensures this."
        )


INDEPENDENT = NoiseMatrix("independent", 0, 1)


@functools.lru_cache(maxsize=64)
def banded_matrix(rounds: int, bands: int) -> NoiseMatrix:
    """Return the banded Toeplitz matrix with the smallest prefix error over `rounds` rounds.

    Args:
        rounds: T >= bands.
        bands: b >= 1, minimum distance between two rounds of one unit; 1 is independent noise.

    Raises:
        ValueError: `bands` is out of range.
    """
    if not 1 <= bands <= rounds:
        raise ValueError(f"bands = {bands}: give an integer from 1 to rounds = {rounds}")
    if bands == 1:
        return INDEPENDENT

    def objective(tail: Array) -> tuple[float, Array]:
        column = np.concatenate([[1.0], tail])
        inverse = scipy.signal.lfilter([1.0], column, scipy.signal.unit_impulse(rounds))
        sums = np.cumsum(inverse)
        error, length = _mean_square(sums), float(column @ column)
        # d(sums) = -(sums * inverse), shifted by the index of the entry.
        weighted, moved = sums * _left(rounds), scipy.signal.lfilter([1.0], column, sums)
        slope = np.array(
            [-2.0 * float(weighted[j:] @ moved[: rounds - j]) for j in range(1, bands)]
        )
        return math.log(error * length), slope / error + 2.0 * tail / length

    tail = _least(objective, _square_root(bands)[1:])
    return NoiseMatrix("banded", rounds, bands, tuple(_rounded(tail)))


@functools.lru_cache(maxsize=64)
def buffered_matrix(rounds: int, separation: int, buffers: int) -> NoiseMatrix:
    """Return the BLT with the smallest prefix error for units that take part every b-th round.

    Args:
        rounds: T >= separation.
        separation: b >= 1, distance between two rounds of one unit.
        buffers: number of buffers, 1 to 6; each is a copy of the parameters.

    Raises:
        ValueError: an argument is out of range.
    """
    if not 1 <= separation <= rounds:
        raise ValueError(f"separation = {separation}: give an integer from 1 to rounds = {rounds}")
    if not 1 <= buffers <= 6:
        raise ValueError(f"buffers = {buffers}: give an integer from 1 to 6")

    def objective(point: Array) -> tuple[float, Array]:
        weights, decays = np.exp(point[:buffers]), scipy.special.expit(point[buffers:])
        powers = decays[:, None] ** np.arange(rounds - 1)
        column = np.concatenate([[1.0], weights @ powers])
        # 1/C as a ratio of polynomials: C = 1 + Σ αᵢ x/(1 - λᵢ x).
        below = np.poly(decays)
        above = below + sum(
            weight * np.concatenate([[0.0], np.atleast_1d(np.poly(np.delete(decays, i)))])
            for i, weight in enumerate(weights)
        )
        sums = np.cumsum(scipy.signal.lfilter(below, above, scipy.signal.unit_impulse(rounds)))
        moved = _columns(column, separation)
        error, length = _mean_square(sums), float(moved @ moved)
        if not math.isfinite(error * length):
            return 700.0, np.zeros_like(point)
        behind = scipy.signal.lfilter(below, above, sums)
        slope = -2.0 / error * _correlated(sums * _left(rounds), behind)
        for first in range(0, rounds, separation):
            slope[: rounds - first] += 2.0 / length * moved[first:]
        faster = np.zeros_like(powers)
        faster[:, 1:] = np.arange(1, rounds - 1) * powers[:, :-1]
        by_decay = weights * (faster @ slope[1:]) * decays * (1.0 - decays)
        return math.log(error * length), np.concatenate([weights * (powers @ slope[1:]), by_decay])

    # Start: time scales from 2 rounds to the run's length; weights fit the square root of prefix
    # sums.
    spans = np.geomspace(2.0, max(4.0, rounds), buffers)
    powers = (1.0 - 1.0 / spans) ** np.arange(max(rounds, 2) - 1)[:, None]
    weights, _ = scipy.optimize.nnls(powers, _square_root(max(rounds, 2))[1:])
    start = np.concatenate([np.log(np.maximum(weights, 1e-2)), np.log(spans - 1.0)])
    bounds = [(-20.0, 10.0)] * buffers + [(-10.0, 12.0)] * buffers
    point = _least(objective, start, bounds)
    return NoiseMatrix(
        "blt",
        rounds,
        separation,
        tuple(_rounded(np.exp(point[:buffers]))),
        tuple(1.0 - short for short in _rounded(scipy.special.expit(-point[buffers:]))),
    )


def _least(
    objective: Callable[[Array], tuple[float, Array]],
    start: Array,
    bounds: list[tuple[float, float]] | None = None,
) -> Array:
    result = scipy.optimize.minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 3000, "maxfun": 5000, "ftol": 1e-12, "gtol": 1e-8},
    )
    point: Array = result.x
    return point


def _columns(column: Array, separation: int) -> Array:
    """Return the sum of the columns of a unit that takes part every `separation` rounds."""
    total = np.zeros(len(column))
    for first in range(0, len(column), separation):
        total[first:] += column[: len(column) - first]
    return total


def _correlated(one: Array, other: Array) -> Array:
    """Return Σ_(s >= j) one[s]·other[s - j] for every j."""
    correlated: Array = scipy.signal.fftconvolve(one[::-1], other)[: len(one)][::-1]
    return correlated


def _moved(column: Array, separation: int) -> float:
    """Return the maximum movement of C·(updates) by k participations, over √k.

    The k columns are `separation` apart. With entries >= 0, the maximum is reached if all
    participations have the same direction. A unit that starts later or skips rounds moves a part of
    the same sum.
    """
    if separation > int(np.flatnonzero(column)[-1]):  # the columns share no row: any signs
        return float(np.linalg.norm(column))
    if column.min() < 0.0:
        raise ValueError(f"column = {column}: overlapping columns need entries >= 0")
    participations = -(-len(column) // separation)
    return float(np.linalg.norm(_columns(column, separation))) / math.sqrt(participations)


def _inverse(column: Array) -> Array:
    """Return the first column of C⁻¹, by forward substitution."""
    last = int(np.flatnonzero(column)[-1]) + 1
    inverse: Array = scipy.signal.lfilter(
        [1.0], column[:last], scipy.signal.unit_impulse(len(column))
    )
    return inverse


def _mean_square(sums: Array) -> float:
    """Return the mean squared length of the T rows: entry s is in T - s of them."""
    return float(np.square(sums) @ _left(len(sums)))


def _left(rounds: int) -> Array:
    return np.arange(rounds, 0, -1) / rounds


def _square_root(count: int) -> Array:
    """Return the first column of the square root of the prefix-sum matrix: C(2t, t)/4^t."""
    steps = np.arange(1, count)
    return np.concatenate([[1.0], np.cumprod((2.0 * steps - 1.0) / (2.0 * steps))])


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
