"""Accountant of balanced sampling: each user in one secret round of each of k passes of m rounds.

Also called random allocation, and for one pass balls in bins (Chua et al. 2024; Feldman and
Shenfeld 2025, 2026; Dong and Özgür 2026). The proof for add-or-remove-one (and for zero-out-one,
which has the same pairs) has three steps:

1. *One pair for adaptive rounds.* Let round i release, given earlier releases, a Gaussian of
   deviation σ. A user who takes part moves its mean by a vector v of length <= 1. From z in R^T,
   all rounds can be simulated without knowing whether the user is present: in round i add
   v z_i + noise of covariance σ² (I - v v'), with v from earlier rounds. With z from
   Q = N(0, σ² I) this is a run without the user; with z from N(1_S, σ² I) the user takes part in
   the rounds S. So the run is a post-processing of the pair P = E_S N(1_S, σ² I) against Q. This
   needs subsets that users draw independently of each other, and a T fixed in advance. As z may be
   drawn before the first round, other releases may come in between.
2. *Passes are independent.* A user draws one round of each pass. So P and Q are products over the
   passes of P_m = (1/m) Σ_i N(e_i, σ² I) against N(0, σ² I), where m is the length of the pass. (A
   uniform k-subset of all rounds costs no more: divide it into passes at random, and reveal the
   division. Feldman and Shenfeld.)
3. *The distribution of 1 in m on a grid.* Under Q the likelihood ratio L of a pass is the mean of m
   independent log-normals of mean 1. Divergences are means of convex functions of L under Q:
   E (L - e^ε)+ for removing, E (1 - e^ε L)+ for adding. A spread of L moves mass apart and keeps
   its mean. So it costs at least as much, for every ε, in both directions. The same holds for a sum
   of independent spreads, and for a product of pairs that each cost more (Zhu et al. 2022). Every
   rounding here is such a spread: onto the two neighbours on a geometric grid, and at the tails
   onto 0 (infinite loss of adding) and onto infinity (infinite loss of removing).

On a geometric grid the sum of points i and j is at max(i, j) + c(|i - j|). So all pairs of one
distance are rounded with the same two weights, and a sum takes one vector operation per distance.
Floating-point errors are charged too, except those of the log-normal's masses and of the
composition of passes (`composition.py`, a model).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from fedsim.accounting.events import Composition, Profile, RoundCost
from fedsim.accounting.methods.accountant import Accountant
from fedsim.accounting.methods.composition import ComposedPld, LossSum
from fedsim.accounting.methods.mixture_pld import Losses, mixture_pld
from fedsim.accounting.methods.pld import solve_epsilon
from fedsim.sampling import BalancedSampling, PoissonSampling, Relation

Array = npt.NDArray[np.float64]

_TAIL = 1e-20  # mass at either end that a sum charges to δ
_FIRST_FINENESS = 1.0 / 8.0  # width of a grid over the spread of its distribution
_FINEST = 1.0 / 128.0
_TOLERANCE = 2e-3  # relative reduction of ε or δ on finer grids that is ignored
_LEAST_NOISE = 0.05  # below, masses leave the range of floats, and amplification is tiny
_MOST_NOISE = 1e4  # above, rounding on the grid would be visible


_OF_MOMENTS = 1e-13  # relative rounding error of a moment


@dataclass(frozen=True)
class RandomAllocationAccountant(Accountant):
    """The distribution of the likelihood ratio on a geometric grid; ε is tight to about 2e-3."""

    def refusal(self, cost: RoundCost, relation: Relation) -> str | None:
        """Return why this accountant cannot prove anything about a round, or None."""
        if not isinstance(cost.sampling, BalancedSampling) and not _plain(cost):
            return "accounts only balanced sampling, and releases over all users"
        if relation is Relation.REPLACE:
            return "has no proof for replace-one; use add-or-remove-one or zero-out-one"
        return None

    def epsilon(self, costs: Composition, delta: float, relation: Relation) -> float:
        """Return ε at δ; inf if δ is below the mass of the tails, about 1e-19 a round."""
        if (gaussian := _unamplified(costs)) is not None:
            return solve_epsilon(gaussian, delta, relation)[0]
        return _refined(lambda f: composed(tuple(costs), f).get_epsilon_for_delta(delta))

    def profile(self, costs: Composition, delta: float, relation: Relation) -> Profile:
        """Return δ as a function of ε, on the second-finest grid."""
        if (gaussian := _unamplified(costs)) is not None:
            return solve_epsilon(gaussian, delta, relation)[1].deltas
        return composed(tuple(costs), 2.0 * _FINEST).deltas

    def renyi(self, cost: RoundCost, relation: Relation, order: float) -> tuple[float, float]:
        """Return the Rényi divergence of a whole run's finite losses, and its infinite mass.

        Both are for the more expensive direction, on one grid. With too little noise for a grid,
        they are those of one Gaussian mechanism per pass.
        """
        if cost.noise_multiplier < _LEAST_NOISE:
            passes = cast(BalancedSampling, cost.sampling).participations
            return passes * order / (2.0 * cost.noise_multiplier**2), 0.0
        sides = composed(((cost, cost.sampling.run_rounds or 1),), 2.0 * _FINEST).directions
        logs = [sum(p.count * p.log_moments(order - 1.0)[0] for p in side.parts) for side in sides]
        renyi = (max(0.0, *logs) + _OF_MOMENTS) / (order - 1.0)
        return renyi, max(side.infinite for side in sides)


@functools.lru_cache(maxsize=8)
def composed(costs: tuple[tuple[RoundCost, int], ...], fineness: float) -> ComposedPld:
    """Return the losses of all passes, removing first and then adding, rounded pessimistically.

    Args:
        costs: balanced sampling, with noise of at least 0.05.
        fineness: width of a grid relative to the spread of its distribution.
    """
    pairs, plain = [], [(cost, rounds) for cost, rounds in costs if _plain(cost)]
    for cost, rounds in (part for part in costs if part not in plain):
        sampling = cast(BalancedSampling, cost.sampling)
        sizes, runs = sampling.pass_sizes, cost.runs(rounds)
        laws, width = _sums(min(cost.noise_multiplier, _MOST_NOISE), sizes.keys(), fineness)
        pairs += [laws[m].losses(m, width, runs * passes) for m, passes in sizes.items()]
    finest = min((losses.width for losses, _ in pairs), default=fineness)
    for cost, rounds in plain:
        pld = mixture_pld(min(cost.noise_multiplier, _MOST_NOISE), [1.0], [1.0], finest)
        pmfs = [pmf.to_dense_pmf() for pmf in (pld._pmf_remove, pld._pmf_add)]
        first, second = (
            Losses(pmf._lower_loss, finest, pmf._probs, pmf._infinity_mass, rounds) for pmf in pmfs
        )
        pairs.append((first, second))
    sides = zip(*([_onto(side, finest) for side in pair] for pair in pairs), strict=True)
    return ComposedPld(tuple(LossSum(tuple(side)) for side in sides))


def _onto(losses: Losses, width: float) -> Losses:
    """Spread losses onto a grid of another width; preserves the mass under both P and Q."""
    if losses.width == width:
        return losses
    places = losses.losses / width
    below = np.floor(places).astype(np.int64)
    up = np.expm1((below - places) * width) / math.expm1(-width)
    masses = np.zeros((2, int(below[-1] - below[0]) + 1))
    for row, share in enumerate((1.0 - up, up)):
        np.add.at(masses[row], below - below[0], (share + 1e-14 / width) * losses.probabilities)
    return Losses(int(below[0]), width, _joined(masses), losses.infinite, losses.count)


@dataclass(frozen=True, eq=False)
class _Law:
    """The distribution of a sum of likelihood ratios under Q, on a geometric grid.

    Attributes:
        first: logarithm of the lowest point, in grid widths w.
        masses: (n,) masses of e^(first w), e^((first + 1) w), …
        zero: mass at 0.
        infinite: part of the mean that was moved to infinity.
    """

    first: int
    masses: Array
    zero: float
    infinite: float

    @property
    def last(self) -> int:
        """Logarithm of the highest point, in widths."""
        return self.first + len(self.masses) - 1

    def points(self, width: float) -> Array:
        """Return the points, (n,)."""
        logs: Array = width * np.arange(self.first, self.last + 1, dtype=np.float64)
        return np.exp(logs)

    def mean(self, width: float) -> float:
        """Return the mean without the part at infinity."""
        return float(self.masses @ self.points(width))

    def trimmed(self, width: float, mean: float) -> _Law:
        """Return the distribution without its tails; `mean` is its mean.

        Mass of the lower tail moves to 0, and its mean to infinity. Mass of the upper tail moves to
        the last kept point, and its whole mean to infinity, which is more than a spread moves.
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
        """Return the distribution of an independent sum, on a grid `factor` times as fine."""
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
        # The sum of 0 and a point is set to 0: this small mass would double the grid's range.
        zero = self.zero + other.zero
        means = self.zero * other.mean(width) + other.zero * self.mean(width)
        return _Law(first, _joined(split), zero, self.infinite + other.infinite + means)

    def losses(self, size: int, width: float, count: int) -> tuple[Losses, Losses]:
        """Return the losses of removing and of adding, for `count` passes of `size` rounds."""
        steps, weights = _split(np.array([-math.log(size)]), width)
        masses = _joined(weights * self.masses)
        law = _Law(self.first + int(steps[0]), masses, self.zero, self.infinite / size)
        remove = Losses(law.first, width, masses * law.points(width), law.infinite, count)
        return remove, Losses(-law.last, width, masses[::-1], law.zero, count)


def _joined(split: Array) -> Array:
    """Join masses (2, n) of each point and its successor into masses (n + 1,)."""
    masses: Array = np.append(split[0], 0.0) + np.append(0.0, split[1])
    return masses


def _split(logs: Array, width: float) -> tuple[npt.NDArray[np.int64], Array]:
    """Return the grid points (n,) below e^logs, and weights (2, n) of each and its successor.

    The weights preserve the mean. Rounding moves a position by about 1e-15/w of a step, and a sum
    of n masses by at most n times 1.1e-16. Both weights are increased by more than that.
    """
    places = logs / width
    steps = np.floor(places)
    up = np.expm1((places - steps) * width) / math.expm1(width)
    charged = 1e-14 / width + 3e-16 * len(logs)
    return steps.astype(np.int64), np.stack([1.0 - up, up]) + charged


def _sums(noise: float, sizes: Set[int], fineness: float) -> tuple[dict[int, _Law], float]:
    """Return distributions of sums of n log-normals, for one or two successive n; and a width.

    Each sum is a sum of two halves, so a level of the recursion has at most two distributions. The
    grid gets finer as the relative spread of the sum falls with √n.
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
    """Return the distribution of N(1, σ²)/N(0, σ²) under N(0, σ²), from "connect the dots".

    This splits masses as a spread does, except at the tails, whose mean moves to infinity here.
    """
    pld = mixture_pld(noise, [1.0], [1.0], width)
    remove, add = pld._pmf_remove.to_dense_pmf(), pld._pmf_add.to_dense_pmf()
    masses = add._probs[::-1].copy()
    first = -(add._lower_loss + len(masses) - 1)
    infinite = remove._infinity_mass + add._infinity_mass
    law = _Law(first, masses, add._infinity_mass, infinite)
    masses *= max(1.0, (1.0 - infinite) / law.mean(width))  # what rounding took off
    return law.trimmed(width, 1.0)


def _plain(cost: RoundCost) -> bool:
    """Whether it is a Gaussian mechanism that every user is in once."""
    return cost.sampling == PoissonSampling(1.0) and cost.units_per_user == 1


def _expm1(value: float) -> float:
    return math.expm1(min(value, 600.0))


def _refined(at: Callable[[float], float]) -> float:
    """Return the value on the first grid that is fine enough; each is an upper bound.

    Halving the width removes three quarters of the error, so a third of the last step remains.
    """
    values = [at(_FIRST_FINENESS)]
    for halvings in itertools.count(1):
        values.append(at(_FIRST_FINENESS / 2**halvings))
        best = min(values)
        finest = _FIRST_FINENESS / 2**halvings <= _FINEST
        if best in (0.0, math.inf) or values[-2] - values[-1] <= 3.0 * _TOLERANCE * best or finest:
            return float(best)
    raise AssertionError("unreachable: grids only get finer")


def _unamplified(costs: Composition) -> Composition | None:
    """Return one (more expensive) Gaussian mechanism per pass if noise is too small for a grid."""
    if all(cost.noise_multiplier >= _LEAST_NOISE for cost, _ in costs):
        return None
    return [
        (
            RoundCost(PoissonSampling(1.0), cost.noise_multiplier),
            cost.runs(rounds) * getattr(cost.sampling, "participations", 1),
        )
        for cost, rounds in costs
    ]
