"""ELS: a unit is one example of the capped pool, its update that example's gradient."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from clients.dropout import drops, unit_streams
from clients.gradients import mean_gradient
from fedsim.execution import Unit, Update
from fedsim.materials import Materials
from fedsim.tensors import Tensors


class ExampleGradient:
    """The task of ELS (Charles et al. 2024, Algorithm 1). Keys are example indices of the store."""

    averages_gradients: ClassVar[bool] = True

    def __init__(self, materials: Materials) -> None:
        self._model = materials.model
        self._store = materials.store
        self._seed = materials.seed

    def unit(self, key: int, round: int) -> Unit:
        """Return the example as a unit of its own."""
        tokens, lengths = self._store.padded(np.array([key]))
        streams = unit_streams(self._seed, round, key, 1) if drops(self._model) else None
        return Unit(key, torch.from_numpy(tokens), torch.from_numpy(lengths), streams=streams)

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        """Return the example's gradient."""
        return mean_gradient(self._model, parameters, unit)
