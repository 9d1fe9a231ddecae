"""ELS: a unit is one example of the capped pool; its update is the example's gradient."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from fedsim.clients.models.dropout import drops, example_streams
from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.evaluation.scoring import owners
from fedsim.execution import Keys, Unit, Update
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
        """Return the unit of one example."""
        return self.units(np.array([key]), round)[0]

    def units(self, keys: Keys, round: int) -> list[Unit]:
        """Return one unit for each example."""
        padded, lengths = map(torch.from_numpy, self._store.padded(keys))
        streams = None
        if drops(self._model):
            users = self._store.user_keys[owners(self._store, keys)]
            streams = example_streams(self._seed, round, users, self._store.example_keys[keys])
        rows = enumerate(zip(keys.tolist(), lengths.tolist(), strict=True))
        return [
            Unit(
                key,
                padded[row : row + 1, :length],
                lengths[row : row + 1],
                streams=None if streams is None else streams[row : row + 1],
            )
            for row, (key, length) in rows
        ]

    def update(self, parameters: Tensors, unit: Unit, round: int) -> Update:
        """Return the example's gradient."""
        return mean_gradient(self._model, parameters, unit)
