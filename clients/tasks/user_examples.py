"""Tasks whose unit is a user: the user's examples in a round, and the user's weight."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from fedsim.clients.models.dropout import drops, example_streams
from fedsim.clients.models.mixed_precision import in_float32
from fedsim.data.selection import CohortRule, cohort_block
from fedsim.evaluation.score_cache import losses_for
from fedsim.execution import Keys, Unit
from fedsim.materials import Materials


class UserTask:
    """Base of tasks: a unit is at most `group_size` of a user's examples, chosen in each round.

    Keys are training users of the split. The weight is w_k = min(n_k/ŵ, 1) if `user_weight_cap` ŵ
    is given (McMahan et al. 2018, Algorithm 1; n_k counts the user's training examples), else 1.
    A subclass implements `update` and sets `averages_gradients`.

    Attributes:
        model: the network, in the precision of the run.
    """

    def __init__(
        self,
        materials: Materials,
        *,
        group_size: int,
        selection: CohortRule = "random",
        user_weight_cap: int | None = None,
        streams: bool = False,
    ) -> None:
        """Set up the task; with `streams`, units have example streams even without dropout."""
        self.model = materials.model
        self._store = materials.store
        self._split = materials.split
        self._seed = materials.seed
        self._group_size = group_size
        self._selection = selection
        # Without mixed precision: every worker must choose the same examples.
        exact = replace(materials, model=in_float32(materials.model))
        self._losses = losses_for(exact, selection)
        self._weight_cap = user_weight_cap
        self._streams = streams or drops(materials.model)

    def unit(self, key: int, round: int) -> Unit:
        """Return the user's examples of this round, chosen by `cohort_block`."""
        return self._chosen(np.array([key]), round)[0]

    def units(self, keys: Keys, round: int) -> list[Unit]:
        """Return the units of these users, much faster than `unit` for each."""
        return self._chosen(keys, round)

    def _chosen(self, keys: Keys, round: int) -> list[Unit]:
        block = cohort_block(
            self._split,
            self._store,
            keys,
            group_size=self._group_size,
            rule=self._selection,
            seed=self._seed,
            round=round,
            losses=self._losses,
        )
        tokens, lengths = torch.from_numpy(block.tokens), torch.from_numpy(block.lengths)
        streams = (
            example_streams(self._seed, round, block.users, block.keys) if self._streams else None
        )
        longest = np.maximum.reduceat(block.lengths, block.offsets[:-1]).tolist()
        rows = pairwise(block.offsets.tolist())
        return [
            Unit(
                key,
                tokens[first:last, :width],
                lengths[first:last],
                weight,
                None if streams is None else streams[first:last],
            )
            for key, (first, last), width, weight in zip(
                keys.tolist(), rows, longest, self._weights(keys), strict=True
            )
        ]

    def _weights(self, keys: Keys) -> list[float]:
        if self._weight_cap is None:
            return [1.0] * len(keys)
        sizes = self._split.train_offsets[keys + 1] - self._split.train_offsets[keys]
        weights: list[float] = np.minimum(sizes / self._weight_cap, 1.0).tolist()
        return weights
