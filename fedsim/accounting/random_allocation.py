"""Balanced participation: every user takes part in exactly k of T rounds, a secret random subset.

Also called random allocation, and for k = 1 balls in bins (Chua et al. 2024; Feldman and Shenfeld
2025, 2026; Dong and Özgür 2026). What is proved here, for add-or-remove-one and in three steps:

1. *One pair for adaptive rounds.* Let round i release, given what was released before, a Gaussian
   of deviation σ whose mean a user who takes part moves by a vector v of length <= 1. Whoever has
   z in R^T can play all rounds without knowing whether the user is there: in round i add
   v z_i + noise of covariance σ² (I - v v'), with v from what was played before. With z from
   Q = N(0, σ² I) that is a run without the user, with z from N(1_S, σ² I) one whose user takes part
   in the rounds S. So the run is a post-processing of the pair P = E_S N(1_S, σ² I) against Q. It
   takes subsets that users draw independently of each other, and a T fixed before.
2. *k of T is k times 1 of T/k.* Cut the T rounds at random into k blocks whose sizes differ by at
   most 1, and take one uniform round out of each: no round is preferred, so the k-subset is
   uniform, whether or not k divides T. Tell the blocks, which do not depend on the user: the pair
   of a block of m is P_m = (1/m) Σ_i N(e_i, σ² I) against N(0, σ² I), blocks are independent, and
   which rounds they hold changes no divergence. So (P, Q) is a post-processing of the product of
   the blocks' pairs. (Feldman and Shenfeld take k blocks of floor(T/k); a block of one more round
   costs no more, by Jensen's inequality: the mean of m + 1 exchangeable ratios is the conditional
   expectation of the mean of m of them.)
3. *1 of m by a law on a grid.* Under Q the likelihood ratio L of a block is the mean of m
   independent log-normals of mean 1. Divergences are means of convex functions of L under Q, in
   both directions: E (L - e^ε)+ for removing, E (1 - e^ε L)+ for adding. So a spread of L (mass
   moved apart, its mean kept) costs at least as much, for every ε, in both directions; so does a
   sum of independent spreads, and a product of pairs of which each costs more (Zhu et al. 2022,
   Theorem 10). Every rounding here is such a spread: onto the two neighbours of a geometric grid,
   and at the tails onto 0 (infinite loss of adding) and onto infinity (of removing).

On a geometric grid the sum of points i and j lies at max(i, j) + c(|i - j|), so all pairs of one
distance are rounded by the same two weights, and one sum is as many vector operations as there are
distances. Floating point is charged too, but for the log-normal's own masses and the composition
of blocks (`composition.py`, a model).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedsim.accounting.accountants import delta as delta_of
from fedsim.accounting.accountants import epsilon as epsilon_of
from fedsim.accounting.calibration import least_noise
from fedsim.accounting.composition import ComposedPld, LossSum
from fedsim.accounting.events import RoundCost
from fedsim.accounting.mixture_pld import Losses, mixture_pld
from fedsim.errors import ConfigError
from fedsim.sampling import PoissonSampling
from fedsim.utils.cache import remembered

Array = npt.NDArray[np.float64]

ACCOUNTANT = "random-allocation"

_TAIL = 1e-20  # mass at either end that a sum charges to δ
_FIRST_FINENESS = 1.0 / 8.0  # width of a grid over the spread of what is on it
_FINEST = 1.0 / 128.0
_TOLERANCE = 2e-3  # of ε or δ, relative, that finer grids may still take off
_LEAST_NOISE = 0.05  # below, masses leave the floats' range and amplification is nominal
_MOST_NOISE = 1e4  # above, a grid's roundings would be seen


@dataclass(frozen=True)
class RandomAllocation:
    """Who takes part when: each user in `participations` of `rounds` rounds.

    Attributes:
        rounds: T, fixed before the first.
        participations: k, in [1, T]; the k-subset is uniform, secret and drawn for each user alone.

    Raises:
        ConfigError: no integers with 1 <= k <= T.

    Examples:
        >>> RandomAllocation(10, 4).blocks
        ((3, 2), (2, 2))
    """

    rounds: int
    participations: int

    def __post_init__(self) -> None:
        if type(self.rounds) is not int or self.rounds < 1:
            raise ConfigError(f"rounds = {self.rounds!r}: give an integer >= 1")
        if type(self.participations) is not int or not 1 <= self.participations <= self.rounds:
            raise ConfigError(
                f"participations = {self.participations!r}: give an integer from 1 to rounds = "
                f"{self.rounds}"
            )

    @property
    def probability(self) -> float:
        """Of a user in a round."""
        return self.participations / self.rounds

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Pairs of a block's rounds and how many such blocks there are."""
        size, longer = divmod(self.rounds, self.participations)
        return tuple(
            (rounds, count)
            for rounds, count in ((size + 1, longer), (size, self.participations - longer))
            if count
        )

    def of(self, noun: str) -> str:
        """Return the sampling in words."""
        return (
            f"balanced participation of {noun} (each in exactly {self.participations} of "
            f"{self.rounds})"
        )


def epsilon(allocation: RandomAllocation, noise_multiplier: float, delta: float) -> float:
    """Return an upper bound on ε of the whole run at `delta`, add-or-remove-one.

    About 2e-3 of it above what finer grids would give, at most. Infinite where δ is below the mass
    of the tails, about 1e-19 a round.

    Args:
        allocation: rounds and participations.
        noise_multiplier: σ of every round over what one user can add, > 0.
        delta: in (0, 1).

    Raises:
        ConfigError: an argument out of range, or so little noise that ε is in the millions.

    Examples:
        >>> round(epsilon(RandomAllocation(1000, 10), 1.0, 1e-6), 2)
        1.97
    """
    _check_noise(noise_multiplier)
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta = {delta!r}: give a number in (0, 1)")
    if noise_multiplier < _LEAST_NOISE:
        return epsilon_of(*_unamplified(allocation, noise_multiplier), delta)
    noise = min(noise_multiplier, _MOST_NOISE)
    return _refined(lambda f: composed(allocation, noise, f).get_epsilon_for_delta(delta))


def delta(allocation: RandomAllocation, noise_multiplier: float, epsilon: float) -> float:
    """Return an upper bound on δ of the whole run at `epsilon` >= 0, at most 1; else as `epsilon`.

    Raises:
        ConfigError: an argument out of range, or so little noise that losses leave every grid.
    """
    _check_noise(noise_multiplier)
    if not epsilon >= 0.0:
        raise ConfigError(f"epsilon = {epsilon!r}: give a number >= 0")
    if noise_multiplier < _LEAST_NOISE:
        return delta_of(*_unamplified(allocation, noise_multiplier), epsilon)
    noise = min(noise_multiplier, _MOST_NOISE)
    return _refined(lambda f: min(composed(allocation, noise, f).get_delta_for_epsilon(epsilon), 1))


def calibrate_noise_multiplier(
    allocation: RandomAllocation, *, epsilon: float, delta: float
) -> float:
    """Return the smallest noise multiplier of five digits whose run is (epsilon, delta)-DP.

    As `fedsim.accounting.calibration`, whose search it is; remembered on disk.

    Raises:
        ConfigError: an argument out of range, or a target that no noise reaches.
    """
    if not (epsilon > 0.0 and math.isfinite(epsilon)):
        raise ConfigError(f"epsilon = {epsilon!r}: give a finite number > 0")
    if not 0.0 < delta < 1.0:
        raise ConfigError(f"delta = {delta!r}: give a number in (0, 1)")
    rounds = allocation.rounds

    def search() -> float:
        similar = RoundCost(PoissonSampling(allocation.probability), 1.0)
        noise = least_noise(
            lambda z: _epsilon(allocation, z, delta), similar, rounds, epsilon, delta
        )
        if noise is None:
            raise ConfigError(
                f"epsilon = {epsilon}, delta = {delta}: no noise keeps this; give a larger delta "
                "(about 1e-19 a round is resolved) or a larger epsilon"
            )
        return noise

    inputs = {
        "allocation": [rounds, allocation.participations],
        "epsilon": epsilon,
        "delta": delta,
    }
    return remembered("allocation-noise", inputs, search, lambda value: 0.0 < value < math.inf)


_epsilon = epsilon  # where an argument has its name


@functools.lru_cache(maxsize=8)
def composed(allocation: RandomAllocation, noise: float, fineness: float) -> ComposedPld:
    """Return the losses of all blocks, removing first and then adding, rounded pessimistically.

    Args:
        allocation: rounds and participations.
        noise: σ, in [0.05, 1e4].
        fineness: the grids' widths, relative to the spread of what is on them.
    """
    laws, width = _sums(noise, frozenset(size for size, _ in allocation.blocks), fineness)
    sides = [laws[size].losses(size, width, count) for size, count in allocation.blocks]
    return ComposedPld(tuple(LossSum(side) for side in zip(*sides, strict=True)))


@dataclass(frozen=True, eq=False)
class _Law:
    """The law of a sum of likelihood ratios under Q, spread onto a geometric grid.

    Attributes:
        first: the lowest point's logarithm, in widths of the grid.
        masses: (n,) of e^(first w), e^((first + 1) w), …
        zero: mass of 0.
        infinite: part of the mean that was moved to infinity.
    """

    first: int
    masses: Array
    zero: float
    infinite: float

    @property
    def last(self) -> int:
        """The highest point's logarithm, in widths."""
        return self.first + len(self.masses) - 1

    def points(self, width: float) -> Array:
        """Return (n,) the points."""
        logs: Array = width * np.arange(self.first, self.last + 1, dtype=np.float64)
        return np.exp(logs)

    def mean(self, width: float) -> float:
        """Return the mean, but for what is at infinity."""
        return float(self.masses @ self.points(width))

    def trimmed(self, width: float, mean: float) -> _Law:
        """Return the law of this mean without its tails.

        What is below goes to 0 and its mean to infinity; what is above to the last point kept, and
        its mean to infinity: more than the spread onto that point and infinity would move.
        """
        means = self.masses * self.points(width)
        low = int(np.searchsorted(np.cumsum(self.masses), _TAIL, side="right"))
        above = np.cumsum(means[::-1])
        high = len(means) - int(np.searchsorted(above, _TAIL * mean, side="right"))
        masses = self.masses[low:high].copy()
        masses[-1] += self.masses[high:].sum()
        return _Law(
            self.first + low,
            masses,
            self.zero + float(self.masses[:low].sum()),
            self.infinite + float(means[:low].sum() + means[high:].sum()),
        )

    def plus(self, other: _Law, width: float, factor: int) -> _Law:
        """Return the law of the sum of two independent ones, on a grid `factor` times as fine."""
        first = factor * max(self.first, other.first)
        distances = np.arange(max(self.last - other.first, other.last - self.first) + 1)
        steps, weights = _split(np.log1p(np.exp(-width * distances)), width / factor)
        split = np.zeros((2, factor * max(self.last, other.last) + int(steps[0]) + 1 - first))
        own = self is other
        for lag in range(0 if own else other.first - self.last, other.last - self.first + 1):
            start = max(self.first, other.first - lag)
            stop = min(self.last, other.last - lag) + 1
            pairs = (
                self.masses[start - self.first : stop - self.first]
                * other.masses[start + lag - other.first : stop + lag - other.first]
            )
            twice = 2.0 if own and lag else 1.0
            at = factor * (start + max(lag, 0)) + int(steps[abs(lag)]) - first
            end = at + factor * (stop - start)
            split[:, at:end:factor] += twice * weights[:, abs(lag), None] * pairs
        # 0 and a point is made 0: a mass this small would widen the grid by a factor of two.
        zero = self.zero + other.zero
        means = self.zero * other.mean(width) + other.zero * self.mean(width)
        return _Law(first, _joined(split), zero, self.infinite + other.infinite + means)

    def losses(self, size: int, width: float, count: int) -> tuple[Losses, Losses]:
        """Return the losses of removing and of adding, of `count` blocks of `size` rounds."""
        steps, weights = _split(np.array([-math.log(size)]), width)
        masses = _joined(weights * self.masses)
        law = _Law(self.first + int(steps[0]), masses, self.zero, self.infinite / size)
        remove = Losses(law.first, width, masses * law.points(width), law.infinite, count)
        return remove, Losses(-law.last, width, masses[::-1], law.zero, count)


def _joined(split: Array) -> Array:
    """Return masses (n + 1,) of masses (2, n) that belong to a point and to the next one."""
    masses: Array = np.append(split[0], 0.0) + np.append(0.0, split[1])
    return masses


def _split(logs: Array, width: float) -> tuple[npt.NDArray[np.int64], Array]:
    """Return (n,) grid points below numbers e^logs, and weights (2, n) of it and of the next.

    The weights keep the mean. Floating point moves a position by its last digits, up to some
    1e-15/w of a step, and a sum of n masses by n times 1.1e-16 at most: both weights have more
    than that added.
    """
    places = logs / width
    steps = np.floor(places)
    up = np.expm1((places - steps) * width) / math.expm1(width)
    charged = 1e-14 / width + 3e-16 * len(logs)
    return steps.astype(np.int64), np.stack([1.0 - up, up]) + charged


def _sums(noise: float, sizes: Set[int], fineness: float) -> tuple[dict[int, _Law], float]:
    """Return laws of sums of n log-normals, for n in one or two successive `sizes`; and a width.

    Each is a sum of two halves, so that a level has two laws at most; and the grid gets finer as
    the sum gets narrower, by √n.
    """
    if max(sizes) == 1:
        width = fineness / noise
        return {1: _log_normal(noise, width)}, width
    halves, width = _sums(
        noise, {half for n in sizes if n > 1 for half in (n // 2, n - n // 2)}, fineness
    )
    spread = min(1.0 / noise, math.sqrt(_expm1(noise**-2) / max(sizes)))
    factor = 2 if 1 not in sizes and width > math.sqrt(2.0) * fineness * spread else 1
    laws = {
        n: halves[1]
        if n == 1
        else halves[n // 2].plus(halves[n - n // 2], width, factor).trimmed(width / factor, n)
        for n in sizes
    }
    return laws, width / factor


def _log_normal(noise: float, width: float) -> _Law:
    """Return the law of N(1, σ²)/N(0, σ²) under N(0, σ²): what connecting the dots does to it.

    That splits masses as a spread does, but for the tails, whose mean goes to infinity here.
    """
    pld = mixture_pld(noise, [1.0], [1.0], width)
    remove, add = pld._pmf_remove.to_dense_pmf(), pld._pmf_add.to_dense_pmf()
    masses = add._probs[::-1].copy()
    first = -(add._lower_loss + len(masses) - 1)
    infinite = remove._infinity_mass + add._infinity_mass
    law = _Law(first, masses, add._infinity_mass, infinite)
    masses *= max(1.0, (1.0 - infinite) / law.mean(width))  # what rounding took off
    return law.trimmed(width, 1.0)


def _expm1(value: float) -> float:
    return math.expm1(min(value, 600.0))


def _refined(at: Callable[[float], float]) -> float:
    """Return the value on the first grid that is fine enough; each is an upper bound.

    Halving the width takes three quarters of the error off, so a third of the last step is left.
    """
    values = [at(_FIRST_FINENESS)]
    for halvings in itertools.count(1):
        values.append(at(_FIRST_FINENESS / 2**halvings))
        best = min(values)
        finest = _FIRST_FINENESS / 2**halvings <= _FINEST
        if best in (0.0, math.inf) or values[-2] - values[-1] <= 3.0 * _TOLERANCE * best or finest:
            return float(best)
    raise AssertionError("unreachable: grids only get finer")


def _unamplified(allocation: RandomAllocation, noise: float) -> tuple[RoundCost, int]:
    """Return k Gaussian mechanisms, which cost more: blocks of one round each."""
    return RoundCost(PoissonSampling(1.0), noise), allocation.participations


def _check_noise(noise_multiplier: float) -> None:
    if not 0.0 < noise_multiplier < math.inf:
        raise ConfigError(f"noise_multiplier = {noise_multiplier!r}: give a finite number > 0")
