"""DP-FedSGD: a user's update is the mean gradient over at most `group_size` of its examples."""

from __future__ import annotations

from typing import ClassVar

from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.clients.tasks.user_examples import UserTask
from fedsim.execution import Unit, Update
from fedsim.tensors import Tensors


class AveragedGradient(UserTask):
    """The task of ULS with `local = { task = "fedsgd" }` (Charles et al. 2024, Algorithm 2)."""

    averages_gradients: ClassVar[bool] = True

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        """Return the mean gradient."""
        return mean_gradient(self.model, parameters, unit)
