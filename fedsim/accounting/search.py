"""Select the best of a random number of runs: the cost of the search, and the draw of the number.

A trial is a whole run and a private score of its model. A search makes a random number K of trials,
and releases only the model, score and settings of the best. K follows a truncated negative binomial
distribution with E K = m (geometric or logarithmic; Papernot and Steinke 2022), or a Poisson.

The price of the first two follows from the privacy profile δ of one trial, the same in both
directions (Koskela, Redberg and Wang 2024). With f(x) = E x^K, the selected outcome y has the
density q(y) f'(Q(y)). Q(y) is the probability that a score is at most that of y, and
f'(x) = m (γ / (1 - (1 - γ) x))^(η + 1). For a neighbour's trial Q' and any ε₁ >= 0

    1 - (1-γ) Q' <= γ + (1-γ) (e^ε₁ (1 - Q) + δ(ε₁)) <= (e^ε₁ + δ(ε₁) (1-γ)/γ) (1 - (1-γ) Q),

so f'(Q) <= e^s f'(Q') with s = (η + 1) log(e^ε₁ + δ(ε₁) (1-γ)/γ). As f' <= m, the whole search has
the profile m δ(ε - s). A coin, which is part of the score, breaks ties.
A Poisson number is priced by Rényi divergences only (Papernot and Steinke, Theorem 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy import optimize

from fedsim.seeding import RandomSource

Stopping = Literal["geometric", "logarithmic", "poisson"]
_SHAPES: dict[str, float] = {"geometric": 1.0, "logarithmic": 0.0, "poisson": math.inf}
TRIED: npt.NDArray[np.float64] = np.concatenate([[0.0], np.geomspace(1e-4, 200.0, 3000)])
"""Candidates for ε₁ in `Search.shift`, ascending."""

MOST_TRIALS = 500.0
"""Maximum average number of trials: for more, the distributions of K overflow floats."""


@dataclass(frozen=True)
class Search:
    """A search for the best of a random number of runs.

    Attributes:
        trials: E K, the average number of trials, above 1 and at most `MOST_TRIALS`.
        rounds: rounds of training per trial, >= 1.
        score_noise_multiplier: noise multiplier of each trial's private score, > 0.
        stopping: distribution of K: "geometric"; "logarithmic", the cheapest (usually one trial,
            rarely many); or "poisson", which may give no trial.

    Raises:
        ValueError: a number out of range.

    Examples:
        >>> Search(8.0, 100, 10.0).in_words()
        'each run of a search (geometric, 8 runs on average; the best by a private score counts)'
    """

    trials: float
    rounds: int
    score_noise_multiplier: float
    stopping: Stopping = "geometric"

    def __post_init__(self) -> None:
        if not 1.0 < self.trials <= MOST_TRIALS:
            raise ValueError(
                f"trials = {self.trials!r}: give a number above 1, at most {MOST_TRIALS:g}"
            )
        if type(self.rounds) is not int or self.rounds < 1:
            raise ValueError(f"rounds = {self.rounds!r}: give an integer >= 1")
        if not 0.0 < self.score_noise_multiplier < math.inf:
            raise ValueError(
                f"score_noise_multiplier = {self.score_noise_multiplier!r}: give a number > 0"
            )
        if self.stopping not in _SHAPES:
            raise ValueError(f"stopping = {self.stopping!r}: give one of {', '.join(_SHAPES)}")

    @property
    def shape(self) -> float:
        """η of the negative binomial; inf for a Poisson number."""
        return _SHAPES[self.stopping]

    @cached_property
    def gamma(self) -> float:
        """γ of the negative binomial, in (0, 1), such that its mean is `trials`."""
        if self.stopping == "geometric":
            return 1.0 / self.trials

        def excess(log_gamma: float) -> float:
            return -math.expm1(-log_gamma) / log_gamma - self.trials  # (1/γ - 1) / log(1/γ)

        return math.exp(float(optimize.brentq(excess, -700.0, -1e-9, rtol=1e-12)))

    def shift(self, deltas: npt.NDArray[np.float64], epsilons: npt.NDArray[np.float64]) -> float:
        """Return the minimum of s over ε₁ in `epsilons`; `deltas` is a trial's δ at each."""
        with np.errstate(over="ignore"):
            factors = np.exp(epsilons) + deltas * (1.0 - self.gamma) / self.gamma
        return (self.shape + 1.0) * math.log(float(np.min(factors)))

    def draw(self, source: RandomSource) -> int:
        """Return K, drawn from one uniform number."""
        drawn = float(source.random(1)[0])
        if self.stopping == "poisson":
            k, mass = 0, math.exp(-self.trials)
        else:
            k = 1
            mass = self.gamma if self.shape else (self.gamma - 1.0) / math.log(self.gamma)
        below = 0.0
        while (below := below + mass) <= drawn and mass > 0.0:
            k += 1
            if self.stopping == "poisson":
                mass *= self.trials / k
            else:
                mass *= (1.0 - self.gamma) * (1.0 if self.shape else (k - 1) / k)
        return k

    def in_words(self) -> str:
        """Return the search in words, to follow the word "in"."""
        return (
            f"each run of a search ({self.stopping}, {self.trials:g} runs on average; the best by "
            "a private score counts)"
        )
