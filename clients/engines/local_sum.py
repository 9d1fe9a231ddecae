"""The sum over a call's users of clipped local training: those of stacks, and those alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from clients.engines.local_steps import LocalUser
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Accumulator
from fedsim.tensors import Tensors, zeros_like

# Relative error of a float32 factor times a float32 entry, in a sum over a stack: what the clip
# must allow for. Norms are float64.
_NORM_ERROR = 1e-6
# Factors under this are too coarse in float32; such users are computed alone in float64.
_LEAST_FACTOR = 1e-30


class LocalSum:
    """The sum over a call's users: those of stacks, and those computed one by one."""

    def __init__(self, parameters: Tensors, clip: Clip) -> None:
        self.one_by_one = Accumulator(parameters, clip)
        self._clip = clip
        self._values = zeros_like(parameters, torch.float64)
        self._weight = self._loss = 0.0
        self._units = self._num_gradients = self._unclipped = 0

    def add(
        self, users: Sequence[LocalUser], updates: Tensors, losses: torch.Tensor
    ) -> list[LocalUser]:
        """Add w·clip(update) of a stack of updates, and return the users that it left out.

        Those are the ones with a NaN or an infinity, which only the one that has it may lose,
        and factors near the end of float32. Raises before it adds anything, or not at all.
        """
        norms = [
            torch.linalg.vector_norm(value.flatten(1), dim=1, dtype=torch.float64)
            for value in updates.values()
        ]
        squares = torch.stack(norms, dim=1).square()
        exact = next(iter(updates.values())).dtype == torch.float64
        error = 0.0 if exact else _NORM_ERROR
        factors = self._clip.batch_factors(list(updates), squares, norm_error=error)
        plain = squares.isfinite().all(dim=1) & (factors.amin(dim=1) > _LEAST_FACTOR)
        within = plain & (factors == self._clip.unclipped_factor).all(dim=1)
        for index in (~plain).nonzero()[:, 0].tolist():
            for value in updates.values():
                value[index] = 0.0  # 0 times NaN would be NaN
        weights = torch.tensor([user.unit.weight for user in users], dtype=torch.float64)
        shares = (factors * weights.to(factors.device)[:, None]).where(plain[:, None], 0.0)
        sums = {
            name: shares[:, column].to(value.dtype) @ value.flatten(1)
            for column, (name, value) in enumerate(updates.items())
        }
        for name, value in sums.items():
            self._values[name].add_(value.view(self._values[name].shape))
        kept = [user for user, is_plain in zip(users, plain.tolist(), strict=True) if is_plain]
        self._weight += math.fsum(user.unit.weight for user in kept)
        self._units += len(kept)
        self._unclipped += int(within.sum())
        self._num_gradients += sum(len(rows) for user in kept for rows in user.batches)
        self._loss += float(losses.where(plain & losses.isfinite(), 0.0).sum())
        return [user for user, is_plain in zip(users, plain.tolist(), strict=True) if not is_plain]

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
        return together + self.one_by_one.total()
