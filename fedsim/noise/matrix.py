"""Matrices that correlate the noise of a run's rounds, and how large that makes its sums.

With independent noise a model at round t carries the sum of t draws. A matrix mechanism (Denisov et
al. 2022, arXiv:2202.08312) adds C⁻¹z in place of z, C lower-triangular and z independent: later
rounds take back what earlier ones added, and every release is as private as C·(updates) + z. So the
price is of how far one unit moves C·(updates), and what is gained is the error of prefix sums.

Two kinds, both Toeplitz (their columns are one column, shifted):

- *banded* (Choquette-Choo et al. 2023, arXiv:2306.08153; McKenna 2024, arXiv:2405.15913): zero from
  the b-th entry on. Where a unit's rounds are at least b apart, its columns have no row in common:
  it moves C·(updates) as in independent rounds, and coins in those rounds amplify.
- *BLT*, buffered linear Toeplitz (Dvijotham et al. 2024, arXiv:2404.16706; McMahan et al. 2024,
  arXiv:2408.08868): entries Σ αᵢ λᵢ^(t-1), so that a few buffers remember all rounds. Columns
  overlap; a unit that takes part every b-th round moves the sum of those columns, and no price of
  coins is proved here: with coins it costs what it costs to take part in every turn.

The clip may follow a public schedule. Estimates are divided by the sensitivity of their round, so
that a unit moves each by at most 1; to these the matrix is applied, and the result is multiplied by
the sensitivity again, a public number: post-processing.

Matrices are optimised for the mean squared error of all prefix sums, which is the error of the
parameters under SGD at a constant rate; momentum, other optimizers and `[server.schedule]` weigh
rounds otherwise, and for them it is a guide. They depend on public numbers alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy  # its parts load when they are used: a worker needs none of them

Array = npt.NDArray[np.float64]

_DIGITS = 5  # of a coefficient: libraries that differ in the last bits find the same matrix


@dataclass(frozen=True)
class NoiseMatrix:
    """A lower-triangular Toeplitz matrix C with a diagonal of ones, by the recursion of C⁻¹.

    Round t's noise is y_t = a·z_t − Σᵢ feedback[i]·m_i, z_t fresh and a `amplification`. Memory m
    holds y_(t-1), y_(t-2), … where there are no decays, else buffers: m_i ← decays[i]·m_i + y_t.

    Attributes:
        kind: "independent", "banded" or "blt".
        rounds: T of the run that it was made for; 0 for independent noise, which serves any.
        separation: the least distance of two rounds of one unit.
        feedback: the weights of what is remembered.
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
                f"feedback = {self.feedback}, decays = {self.decays}: columns that overlap are "
                "priced with entries >= 0 alone; give weights >= 0 and decays in [0, 1]"
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
        """By how much fresh noise is above that of a round: it pays for the columns' lengths.

        A unit's k = ⌈rounds/separation⌉ participations move C·(updates) by at most this times what
        k independent rounds would be moved, in L2.
        """
        if not self.feedback:
            return 1.0
        return _moved(self.column(self.rounds), self.separation)

    def round_error(self, round: int) -> float:
        """Return the noise in the release of a round, from 0, in a round's noise."""
        if not self.feedback:
            return 1.0
        return self.amplification * float(np.linalg.norm(_inverse(self.column(round + 1))))

    def last_error_over(self, rounds: int) -> float:
        """Return the noise in the sum of `rounds` rounds, in a round's noise."""
        return self.amplification * float(np.linalg.norm(self._sums(rounds)))

    def error_over(self, rounds: int) -> float:
        """Return the root mean square over `rounds` rounds of the noise in the sum so far."""
        return self.amplification * math.sqrt(_mean_square(self._sums(rounds)))

    def _sums(self, rounds: int) -> Array:
        """Return the entries of the first column of (prefix sums)·C⁻¹."""
        return np.cumsum(_inverse(self.column(rounds)))

    def in_words(self, unit: str, apart: int) -> str:
        """Return the noise in words, for reports; "" for independent noise.

        Args:
            unit: whose rounds are apart.
            apart: how many rounds, at least `separation`.
        """
        if self.kind == "independent":
            return ""
        if self.kind == "banded":
            what = f"by a banded Toeplitz matrix of {len(self.feedback) + 1} bands"
        else:
            what = f"by a Toeplitz matrix of {len(self.decays)} buffers (BLT)"
        times = -(-self.rounds // apart)
        return (
            f"Noise is correlated over the {self.rounds} rounds {what}: later rounds take back "
            "part of what earlier ones added. The noise multiplier is the priced one: fresh noise "
            f"is {self.amplification:.4g} times that. It rests on the rounds of one {unit} being "
            f"at least {apart} apart, {times} at most, which the sampler sees to."
        )


INDEPENDENT = NoiseMatrix("independent", 0, 1)


@functools.lru_cache(maxsize=64)
def banded_matrix(rounds: int, bands: int) -> NoiseMatrix:
    """Return the banded Toeplitz matrix of the least prefix error over `rounds` rounds.

    Args:
        rounds: T >= bands.
        bands: b >= 1, the least distance of two rounds of one unit; 1 is independent noise.

    Raises:
        ValueError: bands out of range.
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
        # d(sums) = -(sums * inverse) shifted by the entry's place.
        weighted, moved = sums * _left(rounds), scipy.signal.lfilter([1.0], column, sums)
        slope = np.array(
            [-2.0 * float(weighted[j:] @ moved[: rounds - j]) for j in range(1, bands)]
        )
        return math.log(error * length), slope / error + 2.0 * tail / length

    tail = _least(objective, _square_root(bands)[1:])
    return NoiseMatrix("banded", rounds, bands, tuple(_rounded(tail)))


@functools.lru_cache(maxsize=64)
def buffered_matrix(rounds: int, separation: int, buffers: int) -> NoiseMatrix:
    """Return the BLT of the least prefix error for units that take part every b-th round.

    Args:
        rounds: T >= separation.
        separation: b >= 1, the distance of two rounds of one unit.
        buffers: 1 to 6, how many copies of the parameters remember.

    Raises:
        ValueError: an argument out of range.
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

    # Decays spread from a half to the run's length; weights as of the square root of prefix sums.
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
    found = scipy.optimize.minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 3000, "maxfun": 5000, "ftol": 1e-12, "gtol": 1e-8},
    )
    point: Array = found.x
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
    """Return how far k participations move C·(updates), over √k: k columns, `separation` apart.

    Columns of one sign: the most where every participation has the same direction. A unit that
    begins later, or leaves rounds out, moves a part of the same sum.
    """
    if separation > int(np.flatnonzero(column)[-1]):  # no row in common: any signs
        return float(np.linalg.norm(column))
    if column.min() < 0.0:
        raise ValueError(f"column = {column}: columns that overlap need entries >= 0")
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
    """Return the mean over rows of their squared lengths: entry s stands in T - s of T rows."""
    return float(np.square(sums) @ _left(len(sums)))


def _left(rounds: int) -> Array:
    return np.arange(rounds, 0, -1) / rounds


def _square_root(count: int) -> Array:
    """Return the first entries of the square root of prefix sums: C(2t, t)/4^t."""
    steps = np.arange(1, count)
    return np.concatenate([[1.0], np.cumprod((2.0 * steps - 1.0) / (2.0 * steps))])


def _rounded(values: Array) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]
