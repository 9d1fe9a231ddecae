"""The sum over a call's units: of those that were added many at once, and of those alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from clients.engines.squares import norm_error
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Accumulator, Unit
from fedsim.tensors import Tensors, zeros_like


class PartialSum:
    """Σ w·clip(update), in float64 across chunks and stacks."""

    def __init__(self, parameters: Tensors, clip: Clip) -> None:
        self.clip = clip
        self.parameters = parameters
        self._values = zeros_like(parameters, torch.float64)
        self._alone: Accumulator | None = None
        self._weight = self._loss = 0.0
        self._units = self._num_gradients = self._unclipped = 0

    @property
    def alone(self) -> Accumulator:
        """Where a unit is added the way `loop` does; it has memory of its own once it is used."""
        if self._alone is None:
            self._alone = Accumulator(
                self.parameters, self.clip, norm_error=norm_error(self.parameters)
            )
        return self._alone

    def within(self, factors: torch.Tensor, plain: torch.Tensor) -> int:
        """Return how many of the plain units the clip left as they were.

        Args:
            factors: (units, layers), of `Clip.batch_factors`.
            plain: (units,) bool, those that are added together.
        """
        return int((plain & (factors == self.clip.unclipped_factor).all(dim=1)).sum())

    def add(self, values: Mapping[str, torch.Tensor]) -> None:
        """Add Σ w·clip(update) of some units, for every parameter, of its shape or flat."""
        for name, value in values.items():
            self._values[name].add_(value.view(self._values[name].shape))

    def count(
        self,
        units: Sequence[Unit],
        losses: torch.Tensor,
        *,
        num_gradients: int,
        num_unclipped: int,
    ) -> None:
        """Count units whose updates were added, or that have none.

        Args:
            units: their weights count.
            losses: (units,); what is not finite counts as zero.
            num_gradients: of examples, that the units took.
            num_unclipped: of the units, that the clip left as they were.
        """
        self._weight += math.fsum(unit.weight for unit in units)
        self._units += len(units)
        self._num_gradients += num_gradients
        self._unclipped += num_unclipped
        self._loss += float(losses.double().where(losses.isfinite(), 0.0).sum())

    def result(self) -> WeightedSum:
        """Return the sum so far."""
        together = WeightedSum(
            values=self._values,
            weight=self._weight,
            num_units=self._units,
            num_gradients=self._num_gradients,
            loss=self._loss,
            num_unclipped=self._unclipped,
        )
        return together if self._alone is None else together + self._alone.total()


def shares(factors: torch.Tensor, units: Sequence[Unit], plain: torch.Tensor) -> torch.Tensor:
    """Return w·factor for the plain units and 0 for the others, (units, layers)."""
    weights = torch.tensor([unit.weight for unit in units], dtype=torch.float64)
    return (factors * weights.to(factors.device)[:, None]).where(plain[:, None], 0.0)
