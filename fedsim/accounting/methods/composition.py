"""Composition of privacy loss distributions by tilted FFT, accurate at tiny δ.

The losses of T rounds are convolved T times, by FFT. The FFT's rounding errors are about T * 1e-16
of the whole mass. So a plain composition of a million rounds resolves no δ below 1e-10, and may
report a δ that is too small. Therefore the losses are tilted first, p(L) e^(θL) / M(θ), with θ such
that the bulk of the tilted sum is at the answer. The errors are then relative to δ itself. (Tilting
is from large-deviations theory; composition by FFT is from Koskela et al. 2020.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import fft, optimize

from fedsim.accounting.methods.mixture_pld import Losses
from fedsim.errors import ConfigError

Array = npt.NDArray[np.float64]

_LOG_OUTSIDE = math.log(1e-17)  # log of the tilted mass outside the window, on either side
_SPREADS = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0])  # tilts tried for the window's ends
_FURTHER = np.geomspace(1e-9, 1.0, 64)  # further tilts to try, for rates below 1e-10
_LONG = 1 << 20  # window points from which the further tilts are tried
_LONGEST = 1 << 25  # maximum window points: a dozen such arrays, 3 GB, are in memory at once
_ROUNDING = 2e-16  # relative rounding error of one operation
_NEGLIGIBLE = 1e-3  # rounding error relative to δ that changes ε by at most a relative 1e-4
_NARROW = 0.01  # tilted spread, in widths, below which more tilt does not help
_AT_ONCE = 1024  # losses summed between two checks of the sum
_TILT_ACCURACY = 1e-2  # relative accuracy of the tilt; the bulk's position need not be exact


class LongWindowError(ConfigError):
    """The bulk of the losses of these rounds takes too many grid points."""


@dataclass(frozen=True)
class ComposedPld:
    """The PLD of several rounds, in both directions (stored once if they are equal)."""

    directions: tuple[LossSum, ...]

    @classmethod
    def of(cls, parts: Sequence[tuple[PrivacyLossDistribution, int]], width: float) -> ComposedPld:
        """Return the composition of pairs of a round's PLD, on grids of `width`, and its count."""
        sides = [[(pld._pmf_remove.to_dense_pmf(), count) for pld, count in parts]]
        if not all(pld._symmetric for pld, _ in parts):
            sides.append([(pld._pmf_add.to_dense_pmf(), count) for pld, count in parts])
        return cls(
            tuple(
                LossSum(
                    tuple(
                        Losses(pmf._lower_loss, width, pmf._probs, pmf._infinity_mass, count)
                        for pmf, count in side
                    )
                )
                for side in sides
            )
        )

    def get_delta_for_epsilon(self, epsilon: float) -> float:
        """Return the hockey-stick divergence at ε >= 0."""
        return max(side.delta(epsilon) for side in self.directions)

    def deltas(self, epsilons: Array) -> Array:
        """Return `get_delta_for_epsilon` of many ε >= 0, ascending, from a few transforms."""
        first, *other = (side.deltas(epsilons) for side in self.directions)
        return np.maximum(first, other[0]) if other else first

    def get_epsilon_for_delta(self, delta: float) -> float:
        """Return the smallest ε >= 0 with divergence at most δ; inf below the infinite mass."""
        return max(side.epsilon(delta) for side in self.directions)


@dataclass(frozen=True, eq=False)
class LossSum:
    """The sum of the losses of independent rounds, in one direction."""

    parts: tuple[Losses, ...]

    @cached_property
    def _known_moments(self) -> dict[float, tuple[float, float, float]]:
        return {}  # by tilt, as searches repeat their end points

    @property
    def infinite(self) -> float:
        """The probability that some round's loss is infinite."""
        return -math.expm1(sum(p.count * math.log1p(-p.infinite) for p in self.parts))

    def delta(self, epsilon: float) -> float:
        """Return δ at ε."""
        if self._highest * self.parts[0].width <= epsilon:
            return self.infinite
        tilt = self._tilt_at(epsilon)
        best = 1.0
        # Less tilt moves the bulk down: tried if rounding dominates δ at the first tilt.
        for attempt in (tilt, tilt / 4.0, 0.0):
            bulk = self._bulk(attempt)
            if bulk.losses[0] > epsilon and attempt > 0.0:
                continue  # the bulk misses mass above ε
            value, error = bulk.delta(epsilon)
            best = min(best, value + error + bulk.beyond + self.infinite)
            if error <= _NEGLIGIBLE * best:
                break
        return best

    def deltas(self, epsilons: Array) -> Array:
        """Return δ at each ε, (n,) ascending; one tilt serves all ε at which it is exact enough."""
        found = np.full(len(epsilons), self.infinite)
        left = np.flatnonzero(epsilons < self._highest * self.parts[0].width)
        found[left] = 1.0
        tilt, own = 0.0, False
        while len(left):
            bulk, at = self._bulk(tilt), epsilons[left]
            values, errors = bulk.deltas(at)
            inside = (bulk.losses[0] <= at) | (
                tilt == 0.0
            )  # otherwise the bulk misses mass above ε
            upper = np.where(inside, values + errors + bulk.beyond + self.infinite, 1.0)
            found[left] = np.minimum(found[left], upper)
            unsettled = ~inside | (errors > _NEGLIGIBLE * found[left])
            unsettled[0] &= not own  # its own tilt is the most exact one
            if len(left := left[unsettled]):
                tilt, own = self._tilt_at(float(epsilons[left[0]])), True
        return found

    def epsilon(self, delta: float) -> float:
        """Return ε at δ."""
        if delta <= self.infinite:
            return math.inf
        if self._highest <= 0:  # no positive loss, for example when adding a user at a tiny rate
            return 0.0
        goal = -math.log(delta - self.infinite)

        def excess(theta: float) -> float:
            """Chernoff's exponent at the tilted mean, θ K'(θ) - K(θ), minus the goal."""
            log_moment, mean, _ = self._moments(theta)
            return theta * mean - log_moment - goal

        tilt, best = self._solve(excess), math.inf
        for attempt in (tilt, tilt / 4.0, tilt / 16.0, 0.0):
            bulk = self._bulk(attempt)
            finite = delta - self.infinite - bulk.beyond
            if finite <= 0.0:
                continue
            upper, settled = bulk.epsilon(finite)
            best = min(best, max(upper, 0.0))  # each is an upper bound
            if settled or best == 0.0:
                break
        return best

    def _tilt_at(self, loss: float) -> float:
        """Return the tilt >= 0 at which the mean of the sum is nearest to `loss`."""
        return max(self._solve(lambda theta: self._moments(theta)[1] - loss), 0.0)

    def _moments(self, tilt: float) -> tuple[float, float, float]:
        """Return K(θ), K'(θ), K''(θ) of the sum: log moment, tilted mean, tilted variance."""
        if tilt not in self._known_moments:
            each = [(p.count, p.log_moments(tilt)) for p in self.parts]
            log_moment, mean, variance = (sum(n * m[k] for n, m in each) for k in range(3))
            self._known_moments[tilt] = log_moment, mean, variance
        return self._known_moments[tilt]

    def _log_moment(self, tilt: float) -> float:
        """Return only K(θ), in half the time."""
        return sum(p.count * p.log_moment(tilt) for p in self.parts)

    def _solve(self, gap: Callable[[float], float]) -> float:
        """Return θ >= 0 at which an increasing function crosses 0, or the nearest end.

        The upper end has nearly all tilted mass on the highest loss: more tilt would only lose
        digits.
        """
        narrow = (_NARROW * self.parts[0].width) ** 2
        scale = 1.0 / math.sqrt(max(self._moments(0.0)[2], 1e-300))
        if gap(0.0) >= 0.0:
            return 0.0
        high = 0.1 * scale
        for _ in range(60):
            if gap(high) >= 0.0:
                tiny = 1e-9 * high  # for tiny rates the root may be far below `high`
                return float(optimize.brentq(gap, 0.0, high, xtol=tiny, rtol=_TILT_ACCURACY))
            _, mean, variance = self._moments(high)
            if variance < narrow and mean > 0.5 * self._highest * self.parts[0].width:
                break
            high *= 2.0
        return high

    def _bulk(self, tilt: float) -> _Bulk:
        """Return the part of the sum's distribution with nearly all tilted mass.

        Tilted mass below this part wraps around to its top, which rounds losses up.

        Raises:
            LongWindowError: the part does not fit into memory.
        """
        log_moment, mean, variance = self._moments(tilt)
        bottom, top, beyond = self._window(tilt, mean, math.sqrt(variance))
        if top - bottom > _LONGEST:
            raise LongWindowError(
                f"rounds = {sum(p.count for p in self.parts):,}: their privacy losses take "
                f"{top - bottom:.1e} points of a grid, more than fit into memory; give fewer "
                "rounds, or accountant 'rdp'"
            )
        length = fft.next_fast_len(top - bottom + 1, real=True)
        spectrum = np.ones(length // 2 + 1, dtype=np.complex128)
        for part in self.parts:
            tilted = np.exp(part.logs + tilt * part.losses - part.log_moment(tilt))
            # A grid longer than the window wraps around: losses `length` apart coincide.
            folded = np.pad(tilted, (0, -len(tilted) % length)).reshape(-1, length).sum(axis=0)
            spectrum *= _power(fft.rfft(folded), part.count)
        masses = fft.irfft(spectrum, length)
        # The transform starts at the lowest sum: rotate it to start at the window's bottom.
        shift = (bottom - self._lowest) % length
        masses = np.roll(masses, -shift)[: top - bottom + 1]
        # Untilting multiplies both masses and rounding errors by M(θ) e^(-θL).
        width = self.parts[0].width
        losses: Array = np.arange(bottom, top + 1, dtype=np.float64) * width
        logs = np.full(len(masses), -1e300)  # finite, so that differences of logs are not NaN
        np.log(masses, out=logs, where=masses > 0.0)
        untilt = log_moment - tilt * losses
        error = self._rounding(spectrum, length) * math.sqrt(_effective(len(losses), tilt, width))
        return _Bulk(losses, logs + untilt, beyond, math.log(error) + untilt)

    def _rounding(self, spectrum: npt.NDArray[np.complex128], length: int) -> float:
        """Return ten standard deviations of a tilted mass's rounding error.

        The error of a transform of n points is about sqrt(log2 n) roundings at each frequency. The
        power multiplies it by the number of rounds. In the masses this becomes the root mean square
        over the frequencies (Parseval), spread over n points. This is a model, not a proof: it
        assumes independent errors, and that ten deviations are enough.
        """
        rounds = sum(p.count for p in self.parts)
        root_mean_square = math.sqrt(2.0 * float(np.vdot(spectrum, spectrum).real)) / length
        return 10.0 * _ROUNDING * rounds * math.sqrt(math.log2(length) + 1.0) * root_mean_square

    @property
    def _lowest(self) -> int:
        """The lowest sum, in widths."""
        return sum(p.count * p.first for p in self.parts)

    @property
    def _highest(self) -> int:
        """The highest sum, in widths."""
        return self._lowest + sum(p.count * (len(p.probabilities) - 1) for p in self.parts)

    def _window(self, tilt: float, mean: float, spread: float) -> tuple[int, int, float]:
        """Return the ends of the tilted bulk, in widths, and a bound on the mass above it.

        Both ends are the best Chernoff bound over several tilts.
        """
        width = self.parts[0].width
        highest = self._highest
        steps = _SPREADS / max(spread, 0.01 * width)
        here = self._moments(tilt)[0]
        for more in (steps, np.concatenate([steps, _FURTHER * steps[0]])):
            ups = [(self._log_moment(tilt + s) - here - _LOG_OUTSIDE) / s for s in more]
            downs = [(self._log_moment(tilt - s) - here - _LOG_OUTSIDE) / s for s in more]
            best = int(np.argmin(ups))
            top = min(max(math.ceil(ups[best] / width), math.ceil(mean / width)), highest)
            bottom = max(
                min(math.floor(-min(downs) / width), math.floor(mean / width)), self._lowest
            )
            further = tilt + float(more[best])
            if top - bottom < _LONG:
                break
        if top == highest:
            return bottom, top, 0.0
        log_beyond = self._log_moment(further) - further * top * width
        return bottom, top, math.exp(min(log_beyond, 0.0))


@dataclass(frozen=True, eq=False)
class _Bulk:
    """Part of a distribution, with rounding errors that are large below the tilted bulk.

    Attributes:
        losses: (m,) ascending.
        log_masses: (m,) logs of the probabilities of the losses.
        beyond: a bound on the mass above the losses.
        log_errors: (m,) logs of a bound on the rounding error of the sum of masses above a loss.
    """

    losses: Array
    log_masses: Array
    beyond: float
    log_errors: Array

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Return Σ_{L > ε} (1 - e^(ε - L)) p(L), and a bound on its rounding error."""
        first = int(np.searchsorted(self.losses, epsilon, side="right"))
        if first == len(self.losses):
            return 0.0, 0.0
        logs, excess = self.log_masses[first:], self.losses[first:] - epsilon
        value = float(np.exp(np.minimum(logs, 0.0)) @ -np.expm1(-excess))
        return value, math.exp(min(float(self.log_errors[first]), 0.0))

    def deltas(self, epsilons: Array) -> tuple[Array, Array]:
        """Return `delta` at each ε, (n,), as two arrays."""
        logs = self.log_masses, self.log_masses - self.losses
        upper, lower = (np.append(np.logaddexp.accumulate(log[::-1])[::-1], -1e300) for log in logs)
        first = np.searchsorted(self.losses, epsilons, side="right")
        below = np.minimum(epsilons + lower[first] - upper[first], 0.0)
        masses = np.exp(np.minimum(upper[first], 0.0))
        cancelled = 1e-15 * (len(self.losses) - first)  # relative rounding error of both sums
        values = masses * (cancelled - np.expm1(below))
        errors = np.append(np.exp(np.minimum(self.log_errors, 0.0)), 0.0)[first]
        return values, errors

    def epsilon(self, delta: float) -> tuple[float, bool]:
        """Return an ε whose sum plus rounding error is at most δ, and whether ε is tight."""
        end = len(self.losses)
        upper = lower = np.empty(0)  # log sums over all losses from a loss upwards, descending
        # From the top, where sums are exact: below the bulk they are rounding noise.
        for stop in range(end, 0, -_AT_ONCE):
            piece = slice(max(stop - _AT_ONCE, 0), stop)
            logs, losses = self.log_masses[piece][::-1], self.losses[piece][::-1]
            upper = np.logaddexp.accumulate(np.append(upper[-1:], logs))
            lower = np.logaddexp.accumulate(np.append(lower[-1:], logs - losses))
            first = len(upper) - len(
                logs
            )  # 1 if the first entry is the last sum of the piece above
            sums = np.exp(np.minimum(upper[first:], 0.0)) * -np.expm1(
                np.minimum(losses + lower[first:] - upper[first:], 0.0)
            )
            errors = np.exp(np.minimum(self.log_errors[piece][::-1], 0.0))
            exceeding = sums + errors > delta
            if exceeding.any():
                break
        else:
            return float(self.losses[0]), False
        place = int(np.argmax(exceeding))
        last = stop - 1 - place
        if last + 1 == end:
            return math.inf, False
        target = delta - float(errors[place])
        tight = errors[place] <= _NEGLIGIBLE * delta
        above = first + place - 1  # index of the loss above the last that exceeds δ
        rest = math.exp(min(upper[above], 0.0)) - target
        if target <= 0.0 or rest <= 0.0:
            return float(self.losses[last + 1]), bool(tight)
        # Between two grid points δ is (upper sum) - e^ε (lower sum); solve for ε.
        epsilon = math.log(rest) - lower[above]
        return min(float(epsilon), float(self.losses[last + 1])), bool(tight)


def _power(spectrum: npt.NDArray[np.complex128], count: int) -> npt.NDArray[np.complex128]:
    """Return spectrum ** count; skips the many entries whose power underflows to 0."""
    squares = spectrum.real**2 + spectrum.imag**2
    powers = np.zeros_like(spectrum)
    return np.power(spectrum, count, out=powers, where=squares > math.exp(-1600.0 / count))


def _effective(count: int, tilt: float, width: float) -> float:
    """Return Σ e^(-2 θ w k) over k < count: the effective number of errors above a loss."""
    decay = 2.0 * tilt * width
    return float(count) if decay * count < 1.0 else min(count, 1.0 / -math.expm1(-decay))
