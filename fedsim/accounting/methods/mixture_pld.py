"""Privacy loss distribution (PLD) of a round of example-level sampling: a Gaussian mixture.

Removing a user turns P = Σ_i p_i N(i, σ²), with p_i = P(Binomial(K, p) = i), into Q = N(0, σ²)
(Charles et al. 2024, Theorem 3). The loss g(y) = log P(y)/Q(y) increases with y, so a grid of
losses divides the line into intervals. "Connect the dots" (Doroshenko et al. 2022) splits the mass
of each interval between its two ends, and preserves its mass under P *and* under Q. The result
dominates the true pair for every grid. dp_accounting does the same. This code is faster: it inverts
g on the whole grid at once, uses one inversion for both directions, and charges components of
negligible mass to δ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import special

Array = npt.NDArray[np.float64]

_LOG_DISCARDED = -50.0  # log of the mass that truncation charges to δ, as in dp_accounting
_TABLE = 4096  # points of the table of starting values for Newton's method
_MAX_STEPS = 60
_CHUNK = 8192  # points at a time: limits memory, and fits in the cache
MAX_POINTS = 3 << 21


def mixture_pld(
    noise: float, sensitivities: Sequence[float], probabilities: Sequence[float], width: float
) -> PrivacyLossDistribution:
    """Return the PLD of one round, an upper bound in both directions (add and remove a user).

    Args:
        noise: σ, the standard deviation, in the unit of the sensitivities; > 0.
        sensitivities: (m,) distinct numbers >= 0, ascending, at least one positive.
        probabilities: (m,) probabilities of the sensitivities, summing to 1.
        width: width of the grid of privacy losses, in nats.

    Raises:
        ValueError: the losses need more than 6 million grid points of this width.
    """
    with_user = math.fsum(p for s, p in zip(sensitivities, probabilities, strict=True) if s)
    mixture = _pruned(noise, tuple(sensitivities), tuple(probabilities), _LOG_DISCARDED)
    if not mixture.sensitivities[-1]:  # at a tiny rate all components with the user are left out
        return drawn_or_nothing(width, with_user)
    lowest, highest = mixture.support
    first = math.floor(float(mixture.loss(np.array([lowest]))[0]) / width)
    last = math.ceil(float(mixture.loss(np.array([highest]))[0]) / width)
    if last - first > MAX_POINTS:
        raise ValueError(f"width = {width}: {last - first} grid points; use a larger width")
    indices = np.arange(first, last + 1)
    losses = (indices * width).astype(np.float64)
    cuts = mixture.inverse_loss(losses, lowest, highest)
    masses, add_masses, infinite = _split_masses(mixture, cuts, indices, width)
    if max(infinite) > with_user:  # losses round to 0 in floats; the simple bound is smaller
        return drawn_or_nothing(width, with_user)
    return PrivacyLossDistribution(
        _pmf(width, first, masses, infinite[0]), _pmf(width, -last, add_masses, infinite[1])
    )


def drawn_or_nothing(width: float, with_user: float) -> PrivacyLossDistribution:
    """Return the PLD of a mechanism that reveals a user whenever the user is drawn."""
    return PrivacyLossDistribution(_pmf(width, 0, np.array([1.0 - with_user]), with_user))


@dataclass(frozen=True, eq=False)
class Losses:
    """The losses of one round on a grid, and the number of such rounds.

    Attributes:
        first: the lowest loss, in widths.
        width: width of the grid, in nats.
        probabilities: (n,) probabilities of the losses first * width, (first + 1) * width, …
        infinite: probability of an infinite loss.
        count: number of rounds.
    """

    first: int
    width: float
    probabilities: Array
    infinite: float
    count: int

    @cached_property
    def losses(self) -> Array:
        """(n,) losses."""
        indices = np.arange(self.first, self.first + len(self.probabilities), dtype=np.float64)
        return indices * self.width

    @cached_property
    def logs(self) -> Array:
        """(n,) log probabilities."""
        with np.errstate(divide="ignore"):
            return np.log(self.probabilities)

    def log_moment(self, tilt: float) -> float:
        """Return log M(θ)."""
        return self._tilted(tilt)[0]

    def log_moments(self, tilt: float) -> tuple[float, float, float]:
        """Return log M(θ) and its first two derivatives, the tilted mean and variance."""
        log_moment, weights, total = self._tilted(tilt)
        mean = float(weights @ self.losses / total)
        variance = float(weights @ (self.losses - mean) ** 2 / total)
        return log_moment, mean, variance

    def _tilted(self, tilt: float) -> tuple[float, Array, float]:
        """Return log M(θ), and the tilted probabilities with their sum."""
        exponents = tilt * self.losses
        exponents += self.logs
        top = exponents.max()
        exponents -= top
        weights = np.exp(exponents, out=exponents)
        total = weights.sum()
        return float(top + np.log(total)), weights, float(total)


@dataclass(frozen=True, eq=False)
class _Mixture:
    """P = Σ_i exp(log_weights_i) N(sensitivities_i, σ²) and Q = N(0, σ²).

    Attributes:
        noise: σ.
        sensitivities: (m,) ascending.
        log_weights: (m,) log probabilities, which sum to 1 - `discarded`.
        discarded: mass of the components left out.
    """

    noise: float
    sensitivities: Array
    log_weights: Array
    discarded: float

    def loss(self, points: Array) -> Array:
        """Return g at points of shape (n,)."""
        return self._loss_and_slope(points)[0]

    def _loss_and_slope(self, points: Array) -> tuple[Array, Array]:
        """Return g and g' at points of shape (n,); g is a log-sum-exp, increasing and convex."""
        if len(points) > _CHUNK:
            parts = [self._loss_and_slope(part) for part in _chunks(points)]
            values, slopes = zip(*parts, strict=True)
            return np.concatenate(values), np.concatenate(slopes)
        # log (N(s, σ²) / N(0, σ²)) at y is (s y - s²/2) / σ²: linear in y for each component.
        exponents = np.multiply.outer(self.sensitivities / self.noise**2, points)
        exponents += (self.log_weights - 0.5 * (self.sensitivities / self.noise) ** 2)[:, None]
        top = exponents.max(axis=0)
        np.exp(np.subtract(exponents, top, out=exponents), out=exponents)
        total = exponents.sum(axis=0)
        return top + np.log(total), (self.sensitivities @ exponents) / (total * self.noise**2)

    @cached_property
    def support(self) -> tuple[float, float]:
        """Return points with at most e^-50 / 2 of Q below the first and of P above the second."""
        tail = _LOG_DISCARDED - math.log(2.0)
        reach = -float(special.ndtri_exp(tail)) * self.noise
        low, high = float(self.sensitivities[0]), float(self.sensitivities[-1]) + reach
        for _ in range(60):  # bisection: log P(Y > y) decreases, and `high` is far enough
            middle = 0.5 * (low + high)
            if self.log_tail_p(np.array([middle]), -1.0)[0] > tail:
                low = middle
            else:
                high = middle
        return -reach, high

    def log_tail_p(self, points: Array, sign: float) -> Array:
        """Return log P(Y <= y) for sign 1, log P(Y > y) for sign -1, at points of shape (n,)."""
        if len(points) > _CHUNK:
            return np.concatenate([self.log_tail_p(part, sign) for part in _chunks(points)])
        tails = special.log_ndtr(
            (sign / self.noise) * (points[None, :] - self.sensitivities[:, None])
        )
        tails += self.log_weights[:, None]
        top = tails.max(axis=0)
        with np.errstate(invalid="ignore"):  # -inf at an infinite point, whose tail is empty
            rest = np.log(np.exp(tails - top).sum(axis=0))
        return np.where(np.isneginf(top), -np.inf, top + rest)

    def log_tail_q(self, points: Array, sign: float) -> Array:
        """Return the same under Q."""
        return np.asarray(special.log_ndtr(sign * points / self.noise))

    def inverse_loss(self, losses: Array, lowest: float, highest: float) -> Array:
        """Return y with g(y) = loss for increasing losses of shape (n,); -inf below g's infimum.

        A table brackets each root. Newton's method from the right end of the bracket decreases
        monotonically to the root, as g is convex, with quadratic convergence. A point that no
        longer decreases is the root, up to the rounding of g.
        """
        table, values = self._table(lowest, highest, losses[-1])
        cell = np.clip(np.searchsorted(values, losses), 1, len(table) - 1)
        left, points = table[cell - 1], table[cell]
        points[losses < values[0]] = lowest
        moving = np.flatnonzero(losses >= values[0])
        for _ in range(_MAX_STEPS):
            value, slope = self._loss_and_slope(points[moving])
            step = np.zeros(len(moving))  # a point where g is numerically flat counts as the root
            np.divide(value - losses[moving], slope, out=step, where=slope > 0.0)
            before = points[moving]
            points[moving] = np.maximum(before - step, left[moving])
            moving = moving[before - points[moving] > 1e-14 * self.noise + 4e-16 * np.abs(before)]
            if len(moving) == 0:
                break
        infimum = self.log_weights[0] if self.sensitivities[0] == 0.0 else -math.inf
        return np.where(losses <= infimum, -np.inf, points)

    def _table(self, lowest: float, highest: float, last: float) -> tuple[Array, Array]:
        """Return points and g there, from `lowest` until g exceeds `last`."""
        end = highest
        while self.loss(np.array([end]))[0] < last:
            end += 0.01 * (highest - lowest)
        # g is smooth and monotone: a coarse table brackets every root between two neighbours.
        table = np.linspace(lowest, end, _TABLE)
        return table, self.loss(table)


@lru_cache(maxsize=8)  # needed again for each finer grid
def _pruned(
    noise: float,
    sensitivities: tuple[float, ...],
    probabilities: tuple[float, ...],
    log_mass: float,
) -> _Mixture:
    """Return the mixture without its lightest components, of total mass at most e^log_mass.

    This is safe if their mass is given to an outcome that reveals everything. P is then a
    post-processing: turn this outcome into a draw from the components left out.
    """
    weights = np.asarray(probabilities)
    order = np.argsort(weights, kind="stable")
    mass = np.cumsum(weights[order])
    num_discarded = int(np.searchsorted(mass, math.exp(log_mass), side="right"))
    components = np.sort(order[num_discarded:])
    return _Mixture(
        noise=noise,
        sensitivities=np.asarray(sensitivities)[components].astype(np.float64),
        log_weights=np.log(weights[components]),
        discarded=float(mass[num_discarded - 1]) if num_discarded else 0.0,
    )


def _split_masses(
    mixture: _Mixture, cuts: Array, indices: npt.NDArray[np.int64], width: float
) -> tuple[Array, Array, tuple[float, float]]:
    """Return the masses for removing and for adding a user, and those of infinite loss.

    Take an interval of losses [ε, ε + w] with mass a under P and b under Q. For removing, its upper
    end gets (a - b e^ε) / (1 - e^-w), and its lower end (b e^(ε + w) - a) / (e^w - 1), which
    preserves a and b. For adding, a and b are exchanged, and the losses change sign.
    """
    (log_a, log_b), (below, above) = _interval_masses(mixture, cuts)
    a, b = np.exp(log_a), np.exp(log_b)
    low, high = indices[:-1] * width, indices[1:] * width
    up, down = -math.expm1(-width), math.expm1(width)

    # Negative masses are rounding errors: a / b is between the values at the interval's ends.
    remove = np.zeros(len(indices))
    remove[1:] += np.maximum(a - np.exp(log_b + low), 0.0) / up
    remove[:-1] += np.maximum(np.exp(log_b + high) - a, 0.0) / down
    remove[0] += below[0]

    add = np.zeros(len(indices))  # from loss -last * width upwards
    add[::-1][:-1] += np.maximum(b - np.exp(log_a - high), 0.0) / up
    add[::-1][1:] += np.maximum(np.exp(log_a - low) - b, 0.0) / down
    add[0] += above[1]
    return remove, add, (above[0] + mixture.discarded, below[1])


def _pmf(width: float, first: int, masses: Array, infinite: float) -> pld_pmf.PLDPmf:
    """Return a distribution that sums to at least 1.

    Rounding would lose mass in every round, so a smaller sum is scaled up. A larger sum stays: an
    upper bound is not scaled down.
    """
    total = math.fsum(masses)
    if total == 0.0:  # the window is too narrow for floats: use the upper end for every loss
        masses[-1] = total = 1.0 - infinite
    masses *= max(1.0, (1.0 - infinite) / total)
    return pld_pmf.DensePLDPmf(width, first, masses, infinite, True)


def _interval_masses(
    mixture: _Mixture, cuts: Array
) -> tuple[tuple[Array, Array], tuple[tuple[float, float], tuple[float, float]]]:
    """Return log masses (n - 1,) between the cuts, and the masses outside, under P and Q."""
    mean = float(np.exp(mixture.log_weights) @ mixture.sensitivities)
    log_p, below_p, above_p = _differences(mixture.log_tail_p, cuts, mean)
    log_q, below_q, above_q = _differences(mixture.log_tail_q, cuts, 0.0)
    return (log_p, log_q), ((below_p, below_q), (above_p, above_q))


def _differences(
    log_tail: Callable[[Array, float], Array], cuts: Array, centre: float
) -> tuple[Array, float, float]:
    """Return log masses between cuts, and the masses below the first and above the last.

    To lose no digits, they are differences of lower tails left of the centre, and of upper tails
    right of it. They are in logarithms, as Q may be e^-1000 where P still has mass.
    """
    middle = int(np.clip(np.searchsorted(cuts, centre), 1, len(cuts) - 2)) if len(cuts) > 2 else 0
    lower, upper = log_tail(cuts[: middle + 1], 1.0), log_tail(cuts[middle:], -1.0)
    left = lower[1:] + _log1mexp(np.diff(lower))
    right = upper[:-1] + _log1mexp(-np.diff(upper))
    return np.concatenate([left, right]), math.exp(lower[0]), math.exp(upper[-1])


def _chunks(points: Array) -> list[Array]:
    return np.array_split(points, math.ceil(len(points) / _CHUNK))


def _log1mexp(drop: Array) -> Array:
    """Return log(1 - e^-drop) for drop >= 0; -inf for drop = 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(drop > 0.0, np.log(-np.expm1(-np.maximum(drop, 0.0))), -np.inf)
