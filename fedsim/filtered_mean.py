"""The estimator of the concentration filter, and how far one user can move it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fedsim.estimators import WeightedSum
from fedsim.tensors import scale


@dataclass(frozen=True)
class FilteredMean:
    """The mean weighted by the filter, Σ w g / Σ w. Sensitivity 24 τ/N to replacing one user.

    That holds while the score of one of the neighbours is at least 2N/3 + 1, see
    `fedsim.accounting.above_threshold`. Proof. Some user's τ-ball holds 2N/3 + 1 users; all of
    them but the replaced one have weight 1 before and after. Of the others each weight moves by
    at most 6/N, together less than 2; the replaced user's two weights are at most 1 each. Any two
    users of positive weight have a common neighbour, so they are 4τ apart at most. Taking weight
    e away from a mean of weight W >= 2N/3, all within 4τ, moves it by at most 4τ e/W; e <= 4.

    Attributes:
        radius: τ.
        num_users: N.
    """

    radius: float
    num_users: int
    sampling_probability: float = field(default=1.0, init=False)
    kind: str = field(default="filtered-mean", init=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.radius < float("inf"):
            raise ValueError(f"radius = {self.radius}: must be positive and finite")

    def __call__(self, total: WeightedSum) -> dict[str, torch.Tensor]:
        """Return the weighted mean; zero where nobody has weight."""
        return scale(total.values, 1.0 / total.weight if total.weight else 0.0)

    def sensitivity(self, bound: float) -> float:
        """Return 24 τ/N, whatever the clip's bound is: concentration bounds what a user moves."""
        return 24.0 * self.radius / self.num_users

    @property
    def rounded_weight(self) -> float:
        """Zero: every user's gradient is computed in a pass of its own, and added in float64."""
        return 0.0

    def describe(self) -> dict[str, float | str]:
        """Return the kind, τ and N."""
        return {"kind": self.kind, "radius": self.radius, "num_users": self.num_users}
