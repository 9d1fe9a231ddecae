"""A learning rate for SGD from public numbers and releases: `docs/planning.md`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fedsim.server.start_curvature import StartCurvature

NOISE_LOSS = 0.015
"""Nats per token that the noise of the whole run may cost, if releases show no signal."""
_USUAL_SIGNAL = 0.03
"""Signal (squared norm of the mean normalised update) above which the rate grows in proportion."""
_MOST_GROWTH = 4.0
_STEEPEST = 16.0


@dataclass(frozen=True)
class AutomaticRate:
    """The learning rate of each round, from the public start, the noise and earlier releases.

    Attributes:
        curvature: measures the curvature at the public starting model, when it is first needed.
        relative_noise: standard deviation of a release's noise divided by the clip's bound C.
        units: expected number of units per round.
        tokens: maximum number of tokens per unit.
    """

    curvature: Callable[[], StartCurvature]
    relative_noise: float
    units: float
    tokens: int

    def of(self, growth: float, noise_stddev: float, squared_shares: float) -> float:
        """Return the rate η at which the noise of all rounds costs `NOISE_LOSS` times growth².

        Noise moves each parameter by a random walk of variance η²s²·Σ share². The rate is at most
        `largest`, so that steps in the steepest direction converge.

        Args:
            growth: factor on the rate, at least 1.
            noise_stddev: s, standard deviation of a release's noise.
            squared_shares: Σ share² of the schedule over the run.
        """
        curvature = self.curvature()
        walk = curvature.stddev(NOISE_LOSS * growth**2)
        rate = walk / (noise_stddev * math.sqrt(squared_shares))
        return min(rate, self.largest(noise_stddev))

    def signal(self, squared_norm: float, noise_stddev: float, num_parameters: int) -> float:
        """Return an unbiased estimate of ‖mean update‖² / C² from a release; it can be negative.

        The noise adds s²d to the squared norm, and independent units of norm C add C²/units.
        """
        bound = noise_stddev / self.relative_noise
        return (squared_norm - noise_stddev**2 * num_parameters) / bound**2 - 1.0 / self.units

    def error(self, rounds: int, num_parameters: int) -> float:
        """Return the standard deviation of the mean of `rounds` signals from the noise."""
        return self.relative_noise**2 * math.sqrt(2.0 * num_parameters / rounds)

    @staticmethod
    def growth(signal: float) -> float:
        """Return the factor on the rate, from 1 to 4, for a signal or its lower bound."""
        return min(max(signal / _USUAL_SIGNAL, 1.0), _MOST_GROWTH)

    def largest(self, noise_stddev: float) -> float:
        """Return the largest rate at which steps in the steepest direction converge."""
        curvature = self.curvature()
        if not curvature.largest:
            return math.inf
        slope = math.sqrt(curvature.trace / self.tokens)  # norm of a unit's gradient, in nats
        return _STEEPEST * slope / curvature.largest * self.relative_noise / noise_stddev
