"""What becomes of the clip from round to round: it stays, or follows a schedule.

The noise multiplier is the same in every round, so the noise follows the clip and ε does not
change (McMahan et al. 2018, §3 and Figs 4 and 8: smaller S and σ as training goes on). The
third policy, which follows the updates' norms and pays for it, is `fedsim.adaptive_clip`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from fedsim.accounting.relations import Relation
from fedsim.estimators import WeightedSum
from fedsim.seeding import RandomSource


@dataclass(frozen=True)
class NextClip:
    """What a round leaves behind for the next one's clip.

    Attributes:
        scale: what the plan's clip is multiplied by in the next round, > 0.
        released_share: the noisy share of units that the clip left as they were; None where
            nothing but the estimate is released.
    """

    scale: float
    released_share: float | None = None


class ClipPolicy(Protocol):
    """How the clip's scale changes. Says what it takes of the noise, if it releases anything."""

    @property
    def constant(self) -> bool:
        """Whether every round has the plan's clip as it is."""
        ...

    def unproved(self, relation: Relation) -> str | None:
        """Return why nobody has proved what a round costs under `relation`, or None."""
        ...

    def update_noise_multiplier(self, noise_multiplier: float) -> float:
        """Return the multiplier of the estimate's noise, so that a round costs the given one."""
        ...

    def after(self, round: int, scale: float, total: WeightedSum, noise: RandomSource) -> NextClip:
        """Return what comes after a round.

        Args:
            round: the round that was carried out, from 0.
            scale: the one it had.
            total: its sum.
            noise: independent of the estimate's.
        """
        ...

    def describe(self) -> Mapping[str, float | str]:
        """Return what a report prints beside the clip."""
        ...


class _WithoutRelease:
    """What policies share that look at no data: all noise is the estimate's."""

    def unproved(self, relation: Relation) -> str | None:
        """Return None: a round costs what it costs with any clip of its own."""
        return None

    def update_noise_multiplier(self, noise_multiplier: float) -> float:
        """Return it as it is."""
        return noise_multiplier


@dataclass(frozen=True)
class ConstantClip(_WithoutRelease):
    """Every round has the same clip."""

    constant = True

    def after(self, round: int, scale: float, total: WeightedSum, noise: RandomSource) -> NextClip:
        """Return the scale as it is."""
        return NextClip(scale)

    def describe(self) -> Mapping[str, float | str]:
        """Return nothing."""
        return {}


@dataclass(frozen=True)
class ClipSchedule(_WithoutRelease):
    """From the plan's clip to `final_scale` times it over `rounds` rounds, then held.

    Round t (from 0) has the scale s(min(t / rounds, 1)): s(x) = 1 + (final_scale - 1)·x if
    linear, final_scale^x if exponential.

    Raises:
        ValueError: `final_scale` is not positive and finite, or `rounds` not at least 1.

    Examples:
        >>> half = ClipSchedule("linear", final_scale=0.5, rounds=100)
        >>> [half.scale(round) for round in (0, 50, 100, 1000)]
        [1.0, 0.75, 0.5, 0.5]
    """

    kind: Literal["linear", "exponential"]
    final_scale: float
    rounds: int
    constant = False

    def __post_init__(self) -> None:
        if not 0.0 < self.final_scale < float("inf"):
            raise ValueError(f"final_scale = {self.final_scale}: must be positive and finite")
        if self.rounds < 1:
            raise ValueError(f"rounds = {self.rounds}: must be at least 1")

    def scale(self, round: int) -> float:
        """Return the scale of a round."""
        part = min(round / self.rounds, 1.0)
        if self.kind == "exponential":
            return math.pow(self.final_scale, part)
        return (1.0 - part) + self.final_scale * part

    def after(self, round: int, scale: float, total: WeightedSum, noise: RandomSource) -> NextClip:
        """Return the next round's scale: a function of its number alone."""
        return NextClip(self.scale(round + 1))

    def describe(self) -> Mapping[str, float | str]:
        """Return the kind and its rounds; where it ends, the report says as a norm."""
        return {"schedule": self.kind, "schedule_rounds": self.rounds}
