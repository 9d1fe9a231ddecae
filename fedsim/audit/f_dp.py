"""Test a trade-off curve with one run: how many right guesses does f-DP allow?

Mahloujifar, Melis and Chaudhuri 2025, "Auditing f-Differential Privacy in One Run" (arXiv
2410.22235). The coins and guesses are those of `one_run.py`; N of r guesses are right. Fix the
coins of all canaries except one. If this one is guessed right, it would be guessed wrong with its
coin turned. f-DP bounds one probability by the other; because 1 - f is concave,

    Σ_{j >= i} j·P(N = j) / s  <=  1 - f(Σ_{j >= i - 1} (r - j)·P(N = j) / s),

where s is half the number of (canary, coin) pairs that may be guessed: the number of canaries, or
half of it if no canary is guessed "out". If P(N >= c) = τ, each smaller number of right guesses
needs a minimum probability. The total is smallest if the whole tail is at c; if it exceeds 1, such
a tail is impossible.

`f` is given by points (ε, δ) of the mechanism's privacy profile. Each point holds for adding and
for removing the user. The curve between points is not used, so fewer points make a bound weaker,
but not wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from fedsim.accounting.accountants import epsilon_of_composition, profile_of_composition
from fedsim.accounting.events import RoundCost
from fedsim.audit.one_run import CONFIDENCE, Guesses, OneRunBound, ways
from fedsim.sampling import Relation

Array = npt.NDArray[np.float64]

_ROUNDING = 1e-9  # margin above probability 1, so that rounding errors cannot refute
_POINTS, _LEAST_DELTA = 48, 1e-8  # number of points and smallest δ of a profile
_STEPS = 64  # members of a family per doubling of the noise
_LEAST, _MOST = -5 * _STEPS, 7 * _STEPS  # from 1/32 of the noise to 128 times the noise
# Relative error of ε from rounding up, with a PLD and with other accountants.
_PLD_ERROR, _LARGER_ERROR = 2e-3, 1e-2


@dataclass(frozen=True, eq=False)
class Profile:
    """Points of a privacy profile: (epsilons[k], deltas[k])-DP holds for each k.

    Attributes:
        epsilons: (points,), >= 0.
        deltas: (points,), in [0, 1], upper bounds.
    """

    epsilons: Array
    deltas: Array

    @cached_property
    def lines(self) -> tuple[Array, Array]:
        """Slopes and intercepts of lines below the false positive rate, as functions of power."""
        growth = np.exp(self.epsilons)
        slopes = np.concatenate([1.0 / growth, growth])
        return slopes, np.concatenate([-self.deltas / growth, 1.0 - self.deltas - growth])

    def least_wrong(self, right: float) -> float:
        """Return the smallest false positive rate of a test with power `right`: (1 - f)⁻¹."""
        slopes, starts = self.lines
        return max(0.0, float(np.max(slopes * right + starts)))

    def refutes(self, guesses: Guesses, error: float) -> bool:
        """Return whether this many right guesses have probability < `error` under the profile."""
        right, total = error * guesses.correct / guesses.slots, error
        for number in range(guesses.correct - 1, -1, -1):
            wrong = guesses.made * total / guesses.slots - right
            missing = max(0.0, self.least_wrong(right) - wrong)
            more = missing * guesses.slots / (guesses.made - number)
            total, right = total + more, right + more * number / guesses.slots
            if total > 1.0 + _ROUNDING:
                return True
        return False

    def p_value(self, guesses: Guesses) -> float:
        """Return an upper bound on the probability of this many right guesses or more."""
        parts = 2**50
        refuted = bisect_left(range(1, parts), True, key=lambda n: self.refutes(guesses, n / parts))
        return (refuted + 1) / parts


Family = Callable[[float], tuple[Profile, float]]
"""Maps a scale of the noise (1: the claimed mechanism) to a profile, and to ε at the audit's δ.

More noise must mean more privacy.
"""


def own_family(cost: RoundCost, rounds: int, relation: Relation, delta: float) -> Family:
    """Return the family of a run's mechanism: its sampler and rounds with any noise multiplier.

    Args:
        cost: cost of a round with Poisson, balanced or cyclic sampling.
        rounds: number of rounds of the run.
        relation: neighbouring relation of the claim.
        delta: δ of the audit; ε is rounded down.
    """
    error = _LARGER_ERROR if cost.sampling.accountant else _PLD_ERROR

    @cache
    def member(scale: float) -> tuple[Profile, float]:
        scaled = replace(cost, noise_multiplier=scale * cost.noise_multiplier)
        costs, least = [(scaled, rounds)], min(_LEAST_DELTA, delta)
        largest, at_delta = (
            epsilon_of_composition(costs, each, None, relation) for each in (least, delta)
        )
        epsilons = np.linspace(0.0, largest, _POINTS)
        deltas = profile_of_composition(costs, least, None, relation)(epsilons)
        return Profile(epsilons, np.minimum(deltas, 1.0)), (1.0 - error) * at_delta

    return member


def bound_in_family(
    scores: Array,
    included: npt.NDArray[np.bool_],
    family: Family,
    *,
    delta: float,
    confidence: float = CONFIDENCE,
    shares: Sequence[float],
) -> tuple[OneRunBound, float]:
    """Return the ε of the least private member that is refuted, and the p-value of the claim.

    The p-value of the claimed curve (scale 1) does not depend on the family. The lower bound does:
    *if* the mechanism is a member of the family, its ε is at least this.

    Args:
        scores: scores as in `one_run.bound_from_canaries`, with the same guesses.
        included: the coins.
        family: mechanisms, ordered by noise.
        delta: δ of the family's ε.
        confidence: confidence of both results.
        shares: shares as in `one_run.bound_from_canaries`.

    Raises:
        ConfigError: see `one_run.ways`.
    """
    guesses = ways(scores, included, shares)
    error = (1.0 - confidence) / len(guesses)

    def refuting(scale: float) -> Guesses | None:
        profile = family(scale)[0]
        return next((one for one in guesses if profile.refutes(one, error)), None)

    claim = family(1.0)[0]
    p_value = min(1.0, len(guesses) * min(claim.p_value(one) for one in guesses))
    scales = [2.0 ** (step / _STEPS) for step in range(_LEAST, _MOST + 1)]
    first = bisect_left(scales, True, key=lambda scale: refuting(scale) is not None)
    best = refuting(scales[first]) if first < len(scales) else None
    epsilon = family(scales[first])[1] if best else 0.0
    shown = best or guesses[0]
    bound = OneRunBound(epsilon, delta, confidence, len(scores), shown.made, shown.correct)
    return bound, p_value
