"""A clip that follows a quantile of the updates' norms, privately (Andrew et al. 2021).

Each round also releases, with noise of its own, how many of the drawn units the clip left as
they were. Too many: the clip shrinks; too few: it grows. The noise on the estimate is made
larger, so that both releases together cost what the plan's noise multiplier z costs alone.

Why they do. A drawn unit adds the pair (w·clip(Δ), b - 1/2), of norms at most S and 1/2: b is 1
or 0, within the clip or not, and the shift by the public 1/2 halves what it can move. The noise
is z_Δ·S on the first and σ_b on the second. Divide each by its noise: a unit adds one vector with
d + 1 entries, of norm at most sqrt(z_Δ⁻² + (2σ_b)⁻²) = 1/z, and the noise on every entry has
standard deviation 1. That is one Gaussian sum of vectors of bounded norm, at noise multiplier z.
What is proved of such sums holds word by word, the vector being one entry longer: for every
sampler, for replacing a unit (2/z), and for a user with several units, where k drawn ones move the
sum by at most k/z, which is all that the mixture of Gaussians asks for (Charles et al. 2024,
Theorem 1). With a clipped denominator, whoever else is drawn, a unit moves the estimate by at most
its sensitivity and the count by 1/2: the same two lengths. From round to round the clip is a
function of what was released before, as the parameters are.

One relation is refused: under zero-out-one a user who contributes zeros is within any clip and
would still add 1/2 to the shifted count, which another would move by 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedsim.accounting.relations import Relation
from fedsim.clip_policy import NextClip
from fedsim.estimators import WeightedSum
from fedsim.noise import add_gaussian_
from fedsim.seeding import RandomSource

_FURTHEST = math.log(1e9)  # of the first clip: updates that are all zero shrink it for ever


@dataclass(frozen=True)
class AdaptiveClip:
    """C ← C·exp(-learning_rate·(share - quantile)), the share noisy (Andrew et al. 2021, eq. 2).

    Every unit counts once, whatever its weight. One whose update is not finite counts as the zero
    that it is replaced by: within. Per layer, a unit is within if every layer is; all
    bounds scale together, so C is where the quantile of max_j ‖Δ_j‖/S_j is 1.

    Attributes:
        quantile: of the norms, where the clip is to be, in [0, 1].
        learning_rate: of the logarithm of the clip, > 0.
        count_noise_stddev: σ_b, of the noise on the count, in units, > 0.
        expected_units: the share's denominator: the expected cohort, a public number, > 0.

    Raises:
        ValueError: a field is outside its range.
    """

    quantile: float
    learning_rate: float
    count_noise_stddev: float
    expected_units: float
    constant = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.quantile <= 1.0:
            raise ValueError(f"quantile = {self.quantile}: must be in [0, 1]")
        for name in ("learning_rate", "count_noise_stddev", "expected_units"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)}: must be positive and finite")

    def unproved(self, relation: Relation) -> str | None:
        """Return why the pair of releases has no proved cost under zero-out-one."""
        if relation is not Relation.ZERO_OUT:
            return None
        return (
            "adaptive clipping has no proved cost under zero-out-one, where a user who "
            "contributes zeros still counts as within the clip; take add-or-remove-one or "
            "replace-one"
        )

    def update_noise_multiplier(self, noise_multiplier: float) -> float:
        """Return z_Δ = (z⁻² - (2σ_b)⁻²)^(-1/2) (Andrew et al. 2021, Theorem 1); 0 for z = 0.

        Raises:
            ValueError: z >= 2σ_b: the count alone costs as much as the whole round may.

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
                f"the noise multiplier {noise_multiplier:.6g} allows to the whole round; give "
                f"more than half of that, such as {2.0 * noise_multiplier:.3g}"
            )
        # z/sqrt(1 - share²), written so that a share near 1 loses no digits.
        return noise_multiplier / math.sqrt((1.0 - share) * (1.0 + share))

    def after(self, round: int, scale: float, total: WeightedSum, noise: RandomSource) -> NextClip:
        """Return the next scale and the noisy share that it was computed from."""
        shifted = total.num_unclipped - 0.5 * total.num_units
        exact = {"": torch.tensor(shifted, dtype=torch.float64)}
        noisy = add_gaussian_(exact, self.count_noise_stddev, noise)[""]
        share = 0.5 + float(noisy) / self.expected_units
        log_scale = math.log(scale) - self.learning_rate * (share - self.quantile)
        return NextClip(math.exp(max(-_FURTHEST, min(log_scale, _FURTHEST))), share)

    def describe(self) -> Mapping[str, float | str]:
        """Return what decides where the clip goes, and the noise on the count."""
        return {
            "adapted_to_quantile": self.quantile,
            "adaptation_rate": self.learning_rate,
            "count_noise_stddev": self.count_noise_stddev,
        }
