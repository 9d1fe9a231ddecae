"""A learning rate for SGD that follows from public numbers alone: `docs/planning.md`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedsim.server.start_curvature import StartCurvature

NOISE_LOSS = 0.015
"""Nats per token that the noise of the whole run may cost, where releases show no signal."""
_USUAL_SIGNAL = 0.03
"""Squared norm of a mean of normalised updates, above which the rate grows in proportion."""
_MOST_GROWTH = 4.0
_STEEPEST = 16.0


@dataclass(frozen=True)
class AutomaticRate:
    """The learning rate of each round, from the public start, the noise and the releases so far.

    Attributes:
        curvature: measures that of the public starting point, when the first round needs it.
        relative_noise: standard deviation of the noise in a release over the clip's bound C.
        units: expected number of units a round.
        tokens: the most tokens of one unit.
    """

    curvature: Callable[[], StartCurvature]
    relative_noise: float
    units: float
    tokens: int

    def of(self, growth: float, noise_stddev: float, squared_shares: float) -> float:
        """Return the rate at which the noise of all rounds costs `NOISE_LOSS` times growth².

        Noise moves each parameter by a random walk of variance η²s²·Σ share². No rate exceeds that
        at which steps in the steepest direction still settle.

        Args:
            growth: at least 1.
            noise_stddev: s, of a release's noise.
            squared_shares: Σ share² of the schedule over the run.
        """
        curvature = self.curvature()
        walk = curvature.stddev(NOISE_LOSS * growth**2)
        found = walk / (noise_stddev * math.sqrt(squared_shares))
        return min(found, self.largest(noise_stddev))

    def signal(self, squared_norm: float, noise_stddev: float, num_parameters: int) -> float:
        """Return an estimate of ‖mean update‖² / C² from a release; without bias, maybe negative.

        The noise adds s²d to the squared norm, and independent units of norm C add C²/units.
        """
        bound = noise_stddev / self.relative_noise
        return (squared_norm - noise_stddev**2 * num_parameters) / bound**2 - 1.0 / self.units

    def error(self, rounds: int, num_parameters: int) -> float:
        """Return the standard deviation that noise gives to the mean of so many signals."""
        return self.relative_noise**2 * math.sqrt(2.0 * num_parameters / rounds)

    @staticmethod
    def growth(signal: float) -> float:
        """Return the factor on the rate, from 1 to 4, by a signal or a lower bound of it."""
        return min(max(signal / _USUAL_SIGNAL, 1.0), _MOST_GROWTH)

    def largest(self, noise_stddev: float) -> float:
        """Return the largest rate, at which steps in the steepest direction still settle."""
        curvature = self.curvature()
        if not curvature.largest:
            return math.inf
        slope = math.sqrt(curvature.trace / self.tokens)  # norm of a unit's gradient, in nats
        return _STEEPEST * slope / curvature.largest * self.relative_noise / noise_stddev
