"""Clip-norm schedules: constant, linear, exponential, adaptive.

A policy scales the whole clip: one factor applies to all layers of a per-layer clip. The state of a
run and its checkpoints keep this factor (`clip_scale`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from fedsim.estimators import WeightedSum
from fedsim.noise.gaussian import release_
from fedsim.sampling import Relation
from fedsim.seeding import NoiseKey


@dataclass(frozen=True)
class NextClip:
    """The clip of the next round.

    Attributes:
        scale: factor on the plan's clip in the next round, > 0.
        released_share: noisy share of units that the clip left unchanged; None if only the
            estimate is released.
    """

    scale: float
    released_share: float | None = None


class ClipPolicy(ABC):
    """How the clip's scale changes. By default it ignores the data and spends no privacy."""

    constant = False
    """Whether every round has the plan's clip unchanged."""

    def unproved(self, relation: Relation) -> str | None:
        """Return why a round has no proved cost under `relation`, or None."""
        return None

    def update_noise_multiplier(self, noise_multiplier: float) -> float:
        """Return the multiplier of the estimate's noise for a round that costs `noise_multiplier`.

        It is larger than `noise_multiplier` if the policy makes noisy releases too.
        """
        return noise_multiplier

    @abstractmethod
    def after(self, round: int, scale: float, total: WeightedSum, noise: NoiseKey) -> NextClip:
        """Return the next round's scale, and the release that it was computed from.

        Args:
            round: the completed round, from 0.
            scale: scale of that round.
            total: sum of that round.
            noise: noise key, independent of the estimate's.
        """

    def describe(self) -> Mapping[str, float | str]:
        """Return settings of the policy for the report."""
        return {}


@dataclass(frozen=True)
class ConstantClip(ClipPolicy):
    """Every round has the same clip."""

    constant = True

    def after(self, round: int, scale: float, total: WeightedSum, noise: NoiseKey) -> NextClip:
        """Return the scale unchanged."""
        return NextClip(scale)


@dataclass(frozen=True)
class ClipSchedule(ClipPolicy):
    """Move the clip to `final_scale` times the plan's clip over `rounds` rounds, then hold it.

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

    def after(self, round: int, scale: float, total: WeightedSum, noise: NoiseKey) -> NextClip:
        """Return the next round's scale, which depends only on the round."""
        return NextClip(self.scale(round + 1))

    def describe(self) -> Mapping[str, float | str]:
        """Return the kind and the rounds; the report adds the final norm."""
        return {"schedule": self.kind, "schedule_rounds": self.rounds}


# Limit on the change of an adaptive clip: zero updates would shrink it without end.
_FURTHEST = math.log(1e9)


@dataclass(frozen=True)
class AdaptiveClip(ClipPolicy):
    """C ← C·exp(-learning_rate·(share - quantile)), the share noisy (Andrew et al. 2021, eq. 2).

    The share is that of units whose update is within the clip. Every unit counts once, whatever its
    weight. A non-finite update is replaced by zero and counts as within. Per layer, a unit is
    within if all its layers are. All bounds scale together, so C converges to the value at which
    the quantile of max_j ‖Δ_j‖/S_j is 1.

    Attributes:
        quantile: target quantile of the norms, in [0, 1].
        learning_rate: learning rate of the logarithm of the clip, > 0.
        count_noise_stddev: σ_b, standard deviation of the noise on the count, in units, > 0.
        expected_units: denominator of the share: the expected cohort size, a public number, > 0.

    Raises:
        ValueError: a field is outside its range.
    """

    quantile: float
    learning_rate: float
    count_noise_stddev: float
    expected_units: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.quantile <= 1.0:
            raise ValueError(f"quantile = {self.quantile}: must be in [0, 1]")
        for name in ("learning_rate", "count_noise_stddev", "expected_units"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: must be positive and finite")

    def unproved(self, relation: Relation) -> str | None:
        """Return why the two releases have no proved cost if a neighbour contributes zeros."""
        if relation not in (Relation.ZERO_OUT, Relation.FIXED_GRAPH):
            return None
        return (
            f"adaptive clipping has no proved cost under {relation.value}, where a user who "
            "contributes zeros still counts as within the clip; take add-or-remove-one or "
            "replace-one"
        )

    def update_noise_multiplier(self, noise_multiplier: float) -> float:
        """Return z_Δ = (z⁻² - (2σ_b)⁻²)^(-1/2) (Andrew et al. 2021, Theorem 1); 0 for z = 0.

        Raises:
            ValueError: z >= 2σ_b: the count alone costs as much as the whole round.

        Examples:
            >>> clip = AdaptiveClip(0.5, 0.2, count_noise_stddev=5.0, expected_units=100.0)
            >>> round(clip.update_noise_multiplier(1.0), 4)  # the estimate pays for the count
            1.005
        """
        if noise_multiplier == 0.0:
            return 0.0
        share = noise_multiplier / (2.0 * self.count_noise_stddev)
        if share >= 1.0:
            raise ValueError(
                f"count_noise_stddev = {self.count_noise_stddev}: the count would cost more than "
                f"the noise multiplier {noise_multiplier:.6g} allows for the whole round; give "
                f"more than half of that multiplier, such as {2.0 * noise_multiplier:.3g}"
            )
        # z/sqrt(1 - share²), in a form that keeps all digits for a share near 1.
        return noise_multiplier / math.sqrt((1.0 - share) * (1.0 + share))

    def after(self, round: int, scale: float, total: WeightedSum, noise: NoiseKey) -> NextClip:
        """Return the next scale and the noisy share that it was computed from."""
        shifted = total.num_unclipped - 0.5 * total.num_units
        exact = {"": torch.tensor(shifted, dtype=torch.float64)}
        noisy, _ = release_(exact, 1.0, self.count_noise_stddev, noise)
        share = 0.5 + float(noisy[""]) / self.expected_units
        log_scale = math.log(scale) - self.learning_rate * (share - self.quantile)
        return NextClip(math.exp(max(-_FURTHEST, min(log_scale, _FURTHEST))), share)

    def describe(self) -> Mapping[str, float | str]:
        """Return the quantile, the learning rate and the noise on the count."""
        return {
            "adapted_to_quantile": self.quantile,
            "adaptation_rate": self.learning_rate,
            "count_noise_stddev": self.count_noise_stddev,
        }
