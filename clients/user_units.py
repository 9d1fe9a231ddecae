"""From a user to the examples that it brings to a round, and to its weight."""

from __future__ import annotations

from functools import partial

import torch

from clients.dropout import drops, unit_streams
from fedsim.data.selection import Rule, select
from fedsim.execution import Unit
from fedsim.materials import Materials
from fedsim.seeding import stream


class UserUnits:
    """At most `group_size` of a user's training examples, chosen anew each round.

    The weight is w_k = min(n_k/ŵ, 1) where `user_weight_cap` ŵ is given (McMahan et al. 2018,
    Algorithm 1; n_k counts the user's training examples), else 1.
    """

    def __init__(
        self, materials: Materials, group_size: int, selection: Rule, user_weight_cap: int | None
    ) -> None:
        self._store = materials.store
        self._split = materials.split
        self._seed = materials.seed
        self._group_size = group_size
        self._selection = selection
        self._weight_cap = user_weight_cap
        self._drops = drops(materials.model)
        self._streams = partial(unit_streams, materials.seed)

    def __call__(self, key: int, round: int) -> Unit:
        """Return user `key` of the split; the choice depends on (seed, round, key) alone."""
        examples = self._split.user_examples(key)
        chosen = select(
            examples,
            self._store.lengths(examples),
            self._group_size,
            self._selection,
            stream(self._seed, "selection", round, key),
        )
        tokens, lengths = self._store.padded(chosen)
        cap = self._weight_cap
        weight = 1.0 if cap is None else min(len(examples) / cap, 1.0)
        streams = self._streams(round, key, len(lengths)) if self._drops else None
        return Unit(key, torch.from_numpy(tokens), torch.from_numpy(lengths), weight, streams)
