"""One run against a whole trade-off curve: how often can anybody be right under f-DP?

Mahloujifar, Melis and Chaudhuri 2025, "Auditing f-Differential Privacy in One Run" (arXiv
2410.22235). The coins and guesses are those of `one_run.py`. With N right guesses of r, let T be
the numbers from i on. Whichever canary is guessed right, with the others' coins fixed, would have
been guessed wrong with its coin turned; f-DP bounds the one by the other, and as 1 - f is concave,

    Σ_{j >= i} j·P(N = j) / s  <=  1 - f(Σ_{j >= i - 1} (r - j)·P(N = j) / s),

where s is the number of (canary, coin) pairs that may be guessed, over two: the number of canaries,
or half of it where nobody is guessed "out". From P(N >= c) on, each smaller number of right guesses
needs some probability. All that a tail of probability τ needs is least where the tail is at c
itself; where it is more than 1, no such tail is possible.

`f` is known here by points (ε, δ) of the mechanism's privacy profile, each of which holds whether
the user is added or removed. Of a curve between the points nothing is claimed, so few points make a
bound weaker, never wrong.
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

_ROUNDING = 1e-9  # what must be beyond probability 1, so that no rounding error refutes
_POINTS, _LEAST_DELTA = 48, 1e-8  # of a profile
_STEPS = 64  # members of a family for each doubling of the noise
_LEAST, _MOST = -5 * _STEPS, 7 * _STEPS  # a 32nd of the noise, and 128 times as much
# Of ε, relative: what rounding up may have added to it, in a PLD and by other accountants.
_PLD_ERROR, _LARGER_ERROR = 2e-3, 1e-2


@dataclass(frozen=True, eq=False)
class Profile:
    """Points of a privacy profile: (epsilons[k], deltas[k])-DP holds for each k.

    Attributes:
        epsilons: (points,), >= 0.
        deltas: (points,), in [0, 1], none too small.
    """

    epsilons: Array
    deltas: Array

    @cached_property
    def lines(self) -> tuple[Array, Array]:
        """Slopes and starts of lines that no false positive rate, over the power, lies below."""
        growth = np.exp(self.epsilons)
        slopes = np.concatenate([1.0 / growth, growth])
        return slopes, np.concatenate([-self.deltas / growth, 1.0 - self.deltas - growth])

    def least_wrong(self, right: float) -> float:
        """Return the least false positive rate of a test whose power is `right`: (1 - f)⁻¹."""
        slopes, starts = self.lines
        return max(0.0, float(np.max(slopes * right + starts)))

    def refutes(self, guesses: Guesses, error: float) -> bool:
        """Return whether so many right guesses have a probability below `error` under it."""
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
        """Return an upper bound on the probability of so many right guesses, or more."""
        parts = 2**50
        refuted = bisect_left(range(1, parts), True, key=lambda n: self.refutes(guesses, n / parts))
        return (refuted + 1) / parts


Family = Callable[[float], tuple[Profile, float]]
"""Mechanisms by the scale of their noise, 1 for the claimed one: profile, and ε at the audit's δ.

More noise must be more private.
"""


def own_family(cost: RoundCost, rounds: int, relation: Relation, delta: float) -> Family:
    """Return the family of a run's mechanism: its sampler and rounds with any noise multiplier.

    Args:
        cost: of a round, by Poisson, balanced or cyclic sampling.
        rounds: of the run.
        relation: of the claim.
        delta: of the audit; ε is rounded down.
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
    """Return the ε of the strongest member that is refuted, and the p-value of the claim itself.

    The refutation of the claimed curve, at scale 1, rests on no family. The lower bound does: it
    says that *if* the mechanism is one of the family's, its ε is at least this.

    Args:
        scores: as of `one_run.bound_from_canaries`, and guesses are made of them alike.
        included: the coins.
        family: ordered by noise.
        delta: that the family's ε are at.
        confidence: of both.
        shares: as there.

    Raises:
        ConfigError: as there.
    """
    made = ways(scores, included, shares)
    error = (1.0 - confidence) / len(made)

    def refuting(scale: float) -> Guesses | None:
        profile = family(scale)[0]
        return next((one for one in made if profile.refutes(one, error)), None)

    claim = family(1.0)[0]
    p_value = min(1.0, len(made) * min(claim.p_value(one) for one in made))
    scales = [2.0 ** (step / _STEPS) for step in range(_LEAST, _MOST + 1)]
    first = bisect_left(scales, True, key=lambda scale: refuting(scale) is not None)
    best = refuting(scales[first]) if first < len(scales) else None
    epsilon = family(scales[first])[1] if best else 0.0
    told = best or made[0]
    bound = OneRunBound(epsilon, delta, confidence, len(scores), told.made, told.correct)
    return bound, p_value
