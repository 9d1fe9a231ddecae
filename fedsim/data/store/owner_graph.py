"""Who owns which example, where a text can have several owners: a bipartite graph, memory-mapped.

    example_owner_offsets.npy  int64, examples + 1
    example_owners.npy         int64: example e has owners[offsets[e] : offsets[e + 1]], its user
                               first, the others ascending
    owner_example_offsets.npy  int64, owners + 1
    owner_examples.npy         int64: the same pairs by owner, examples ascending
    owner_keys.npy             uint64, owners: a digest of each name
    owners.jsonl               the names of owners who wrote nothing, one JSON string a line

Owners are numbered from 0: first the store's users in their order, then those who wrote nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedsim.data.store.manifest import (
    EXAMPLE_OWNER_OFFSETS,
    EXAMPLE_OWNERS,
    OWNER_EXAMPLE_OFFSETS,
    OWNER_EXAMPLES,
    OWNER_KEYS,
)
from fedsim.data.store.rows import open_row, runs
from fedsim.seeding import Hashes

Indices = npt.NDArray[np.int64]


class OwnerGraph(NamedTuple):
    """The pairs of examples and owners, in both directions.

    Attributes:
        num_users: owners below it are the store's users.
        offsets: (examples + 1,) int64.
        owners: (pairs,) int64, see the module.
        owner_offsets: (owners + 1,) int64; an owner of nothing has no place.
        examples: (pairs,) int64.
        keys: (owners,) uint64, a digest of each owner's name.
    """

    num_users: int
    offsets: Indices
    owners: Indices
    owner_offsets: Indices
    examples: Indices
    keys: Hashes

    @classmethod
    def open(cls, folder: Path, num_users: int) -> OwnerGraph:
        """Map the files of a store's folder.

        Raises:
            ValueError: a file is no row of its type.
            OSError: a file is missing.
        """
        by_example = (EXAMPLE_OWNER_OFFSETS, EXAMPLE_OWNERS)
        offsets, owners = (open_row(folder / name, np.int64) for name in by_example)
        by_owner = (OWNER_EXAMPLE_OFFSETS, OWNER_EXAMPLES)
        owner_offsets, examples = (open_row(folder / name, np.int64) for name in by_owner)
        keys = open_row(folder / OWNER_KEYS, np.uint64)
        return cls(num_users, offsets, owners, owner_offsets, examples, keys)

    @property
    def num_owners(self) -> int:
        """Number of owners, those who wrote nothing counted."""
        return len(self.keys)

    def of(self, examples: Indices) -> tuple[Indices, Indices]:
        """Return how many owners each of these examples has, and all of them end to end."""
        starts = self.offsets[examples]
        counts: Indices = self.offsets[examples + 1] - starts
        return counts, self.owners[runs(starts, counts)]

    def examples_of(self, owner: int) -> Indices:
        """Return the examples that one owner has, ascending."""
        return self.examples[self.owner_offsets[owner] : self.owner_offsets[owner + 1]]

    def degrees(self, examples: Indices) -> Indices:
        """Return how many of these examples each owner has: (owners,) int64."""
        return np.bincount(self.of(examples)[1], minlength=self.num_owners).astype(np.int64)
