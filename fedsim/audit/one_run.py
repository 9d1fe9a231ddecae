"""Auditing with one run: how well can anybody guess which canaries were in?

Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run": m canaries are put
in or left out by independent fair coins, the auditor sees what an (ε, δ)-private run releases and
guesses r of the coins, abstaining from the rest. However the guesses were made, and however the
canaries' scores depend on each other, being right v times or more has a probability of at most
`p_value`. The smallest ε that is not refuted is a valid lower bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from fedsim.errors import ConfigError

_LARGEST = 50.0  # e^50: no run can show as much
CONFIDENCE = 0.95  # of every bound
SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the canaries that are guessed


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return the most probable that `correct` right guesses are under (ε, δ)-DP (Theorem 5.2).

    With V ~ Binomial(guesses, e^ε/(e^ε + 1)), the guesses about randomised response, it is
    P(V >= correct) + canaries·δ·max_i (2/i)·P(correct > V >= correct - i), at most 1.

    Args:
        canaries: m, all whose coins were flipped, >= 1.
        guesses: r, in [0, canaries]; about the others the auditor abstained.
        correct: v, in [0, guesses].
        epsilon: of the guarantee, >= 0.
        delta: of the guarantee, in [0, 1].
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
    """Return the largest ε that is refuted with this confidence: a lower bound; 0 if none is.

    The p-value grows with ε, so bisection finds it. A run all of whose guesses are right has a
    finite bound: of r guesses about log(r/log(1/error)).
    """
    error = 1.0 - confidence

    def excess(epsilon: float) -> float:
        return p_value(canaries, guesses, correct, epsilon, delta) - error

    if guesses == 0 or excess(0.0) >= 0.0:
        return 0.0
    if excess(_LARGEST) < 0.0:
        return _LARGEST
    found = float(optimize.brentq(excess, 0.0, _LARGEST, xtol=1e-6))
    return max(0.0, found - 1e-6)


@dataclass(frozen=True)
class Guesses:
    """How many guesses about the canaries were made one way, and how many were right.

    Attributes:
        slots: (canary, coin) pairs that could have been guessed, over two: the number of canaries
            where both sides are guessed, half of it where only "in" is.
        made: guesses; the auditor abstained from the other canaries.
        correct: of these.
    """

    slots: float
    made: int
    correct: int


def ways(
    scores: npt.NDArray[np.float64], included: npt.NDArray[np.bool_], shares: Sequence[float]
) -> list[Guesses]:
    """Return the guesses of `bound_from_canaries`, a number of ways that coins do not decide."""
    canaries = len(scores)
    if canaries < 2 or len(included) != canaries:
        raise ConfigError(
            f"scores: {canaries}, included: {len(included)}; give as many of both, at least 2"
        )
    order = np.argsort(np.nan_to_num(scores, nan=np.inf, posinf=np.inf), kind="stable")
    found = []
    for top in sorted({max(1, math.floor(share * canaries / 2)) for share in shares}):
        right_in = int(included[order[-top:]].sum())
        right_out = int((~included[order[:top]]).sum())
        found.append(Guesses(canaries / 2, top, right_in))
        found.append(Guesses(canaries, 2 * top, right_in + right_out))
    return found


@dataclass(frozen=True)
class OneRunBound:
    """A lower bound from one run's canaries.

    Attributes:
        epsilon: the bound, >= 0; the true ε at `delta` is at least this, with `confidence`.
        delta: of the guarantee that is audited.
        confidence: that the bound holds, whatever number of guesses was taken.
        canaries: coins flipped.
        guesses: made; the auditor abstained from the rest.
        correct: of the guesses.
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
    """Return the best bound over a few numbers of guesses that were fixed in advance.

    The canaries with the highest scores are guessed "in"; as many with the lowest "out", or none,
    since a canary that was in but never drawn looks like one that was out. Each way of guessing
    is tested at an equal part of the error (a union bound), so that the best may be reported.

    Args:
        scores: (m,), computed without a look at `included`; large means "in". NaN counts as +inf.
        included: (m,) bool, the coins.
        delta: of the guarantee.
        confidence: of the reported bound.
        shares: of the m canaries that are guessed, where both sides are.

    Raises:
        ConfigError: fewer than two canaries, or lengths differ.
    """
    made = ways(scores, included, shares)
    each = 1.0 - (1.0 - confidence) / len(made)
    canaries = len(scores)
    found = [
        OneRunBound(
            epsilon_lower_bound(canaries, one.made, one.correct, delta, each),
            delta,
            confidence,
            canaries,
            one.made,
            one.correct,
        )
        for one in made
    ]
    return max(found, key=lambda one: one.epsilon)
