"""DP-FedSGD: a user's update is the mean gradient over at most `group_size` of its examples."""

from __future__ import annotations

from typing import ClassVar

from clients.tasks.mean_gradient import mean_gradient
from clients.tasks.user_examples import UserUnits
from fedsim.data.cohorts import CohortRule
from fedsim.execution import Keys, Unit, Update
from fedsim.materials import Materials
from fedsim.tensors import Tensors


class AveragedGradient:
    """The task of ULS with `local = { task = "fedsgd" }` (Charles et al. 2024, Algorithm 2)."""

    averages_gradients: ClassVar[bool] = True

    def __init__(
        self,
        materials: Materials,
        *,
        group_size: int,
        selection: CohortRule = "random",
        user_weight_cap: int | None = None,
    ) -> None:
        self._model = materials.model
        self._units = UserUnits(materials, group_size, selection, user_weight_cap)

    def unit(self, key: int, round: int) -> Unit:
        """Return the user's examples of this round."""
        return self._units(key, round)

    def units(self, keys: Keys, round: int) -> list[Unit]:
        """Return the examples of each of these users."""
        return self._units.many(keys, round)

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        """Return the mean gradient."""
        return mean_gradient(self._model, parameters, unit)
