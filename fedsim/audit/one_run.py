"""Audit ε with one run, by guesses of which canaries were included.

Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run": independent fair
coins decide which of m canaries are included. The auditor sees the releases of an (ε, δ)-private
run, guesses r of the coins and abstains from the rest. v or more right guesses have probability at
most `p_value`, for any method of guessing and any dependence between scores. The smallest ε that is
not refuted is a valid lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from fedsim.errors import ConfigError

_LARGEST = 50.0  # upper end of the search for ε, beyond what a run can show
CONFIDENCE = 0.95  # confidence of each bound
SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # shares of the canaries to guess


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound the probability of `correct` or more right guesses under (ε, δ)-DP (Theorem 5.2).

    With V ~ Binomial(guesses, e^ε/(e^ε + 1)), the guesses about randomised response, it is
    P(V >= correct) + canaries·δ·max_i (2/i)·P(correct > V >= correct - i), at most 1.

    Args:
        canaries: m, number of canaries, >= 1.
        guesses: r, number of guesses, in [0, canaries].
        correct: v, number of right guesses, in [0, guesses].
        epsilon: ε of the guarantee, >= 0.
        delta: δ of the guarantee, in [0, 1].
    """
    if correct == 0:
        return 1.0
    truth = special.expit(epsilon)
    by_chance = float(special.bdtrc(correct - 1, guesses, truth))
    if delta == 0.0:
        return by_chance
    fewer = special.bdtr(np.arange(correct), guesses, truth)  # P(V <= 0), …, P(V <= v - 1)
    less = np.concatenate([fewer[-2::-1], [0.0]])  # P(V <= v - i - 1) for i = 1 … v
    by_failure = float(np.max(2.0 * (fewer[-1] - less) / np.arange(1, correct + 1)))
    return min(1.0, by_chance + canaries * delta * by_failure)


def epsilon_lower_bound(
    canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """Return the largest ε that is refuted with this confidence, a lower bound; else 0.

    The p-value grows with ε, so root finding works. If all r guesses are right, the bound is about
    log(r/log(1/error)).
    """
    error = 1.0 - confidence

    def excess(epsilon: float) -> float:
        return p_value(canaries, guesses, correct, epsilon, delta) - error

    if guesses == 0 or excess(0.0) >= 0.0:
        return 0.0
    if excess(_LARGEST) < 0.0:
        return _LARGEST
    root = float(optimize.brentq(excess, 0.0, _LARGEST, xtol=1e-6))
    return max(0.0, root - 1e-6)


@dataclass(frozen=True)
class Guesses:
    """Numbers of guesses, and of right guesses, by one way of guessing.

    Attributes:
        slots: half the number of (canary, coin) pairs that can be guessed: the number of canaries
            if both sides are guessed, half of it if only "in" is guessed.
        made: number of guesses; the auditor abstained from the other canaries.
        correct: number of right guesses.
    """

    slots: float
    made: int
    correct: int


def ways(
    scores: npt.NDArray[np.float64], included: npt.NDArray[np.bool_], shares: Sequence[float]
) -> list[Guesses]:
    """Return the guesses of `bound_from_canaries`; the number of ways is independent of coins."""
    canaries = len(scores)
    if canaries < 2 or len(included) != canaries:
        raise ConfigError(
            f"scores: {canaries}, included: {len(included)}; give equally many, at least 2"
        )
    order = np.argsort(np.nan_to_num(scores, nan=np.inf, posinf=np.inf), kind="stable")
    choices = []
    for top in sorted({max(1, math.floor(share * canaries / 2)) for share in shares}):
        right_in = int(included[order[-top:]].sum())
        right_out = int((~included[order[:top]]).sum())
        choices.append(Guesses(canaries / 2, top, right_in))
        choices.append(Guesses(canaries, 2 * top, right_in + right_out))
    return choices


@dataclass(frozen=True)
class OneRunBound:
    """A lower bound from one run's canaries.

    Attributes:
        epsilon: the bound, >= 0; the true ε at `delta` is at least this, with `confidence`.
        delta: δ of the audited guarantee.
        confidence: confidence of the bound, with the choice of the number of guesses.
        canaries: number of canaries.
        guesses: number of guesses; the auditor abstained from the rest.
        correct: number of right guesses.
    """

    epsilon: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int


def bound_from_canaries(
    scores: npt.NDArray[np.float64],
    included: npt.NDArray[np.bool_],
    *,
    delta: float,
    confidence: float = CONFIDENCE,
    shares: Sequence[float] = SHARES,
) -> OneRunBound:
    """Return the best bound over several numbers of guesses, which are fixed in advance.

    The canaries with the highest scores are guessed "in"; equally many with the lowest scores are
    guessed "out", or none, because an included canary that was never drawn looks excluded. A union
    bound over all ways of guessing makes the best bound valid.

    Args:
        scores: (m,), computed without `included`; large means "in". NaN counts as +inf.
        included: (m,) bool, the coins.
        delta: δ of the guarantee.
        confidence: confidence of the reported bound.
        shares: shares of the m canaries to guess, if both sides are guessed.

    Raises:
        ConfigError: fewer than two canaries, or lengths differ.
    """
    guesses = ways(scores, included, shares)
    each = 1.0 - (1.0 - confidence) / len(guesses)
    canaries = len(scores)
    bounds = [
        OneRunBound(
            epsilon_lower_bound(canaries, one.made, one.correct, delta, each),
            delta,
            confidence,
            canaries,
            one.made,
            one.correct,
        )
        for one in guesses
    ]
    return max(bounds, key=lambda one: one.epsilon)
