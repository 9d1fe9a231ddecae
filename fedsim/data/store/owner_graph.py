"""The memory-mapped bipartite graph of examples and owners, for texts with several owners.

    example_owner_offsets.npy  int64, examples + 1
    example_owners.npy         int64: example e has owners[offsets[e] : offsets[e + 1]], its user
                               first, the others ascending
    owner_keys.npy             uint64, owners: a digest of each name
    owners.jsonl               the names of owners without own texts, one JSON string per line

Owners are numbered from 0: first the store's users in order, then owners without own texts.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedsim.data.store.manifest import EXAMPLE_OWNER_OFFSETS, EXAMPLE_OWNERS, OWNER_KEYS
from fedsim.data.store.rows import open_row, runs
from fedsim.seeding import Hashes

Indices = npt.NDArray[np.int64]


class OwnerGraph(NamedTuple):
    """The pairs of examples and owners.

    Attributes:
        num_users: number of the store's users, who are the first owners.
        offsets: (examples + 1,) int64.
        owners: (pairs,) int64, see the module docstring.
        keys: (owners,) uint64, a digest of each owner's name.
    """

    num_users: int
    offsets: Indices
    owners: Indices
    keys: Hashes

    @classmethod
    def open(cls, folder: Path, num_users: int) -> OwnerGraph:
        """Map the files of a store's folder.

        Raises:
            ValueError: a file does not hold a row of its type.
            OSError: a file is missing.
        """
        offsets = open_row(folder / EXAMPLE_OWNER_OFFSETS, np.int64)
        owners = open_row(folder / EXAMPLE_OWNERS, np.int64)
        return cls(num_users, offsets, owners, open_row(folder / OWNER_KEYS, np.uint64))

    @property
    def num_owners(self) -> int:
        """Number of owners, including those without own texts."""
        return len(self.keys)

    def of(self, examples: Indices) -> tuple[Indices, Indices]:
        """Return the number of owners of each example, and all these owners, concatenated."""
        starts = self.offsets[examples]
        counts: Indices = self.offsets[examples + 1] - starts
        return counts, self.owners[runs(starts, counts)]

    def examples_of(self, owner: int) -> Indices:
        """Return the examples of one owner, ascending."""
        return np.searchsorted(self.offsets, np.flatnonzero(self.owners == owner), "right") - 1

    def degrees(self, examples: Indices) -> Indices:
        """Return the number of these examples per owner: (owners,) int64."""
        return np.bincount(self.of(examples)[1], minlength=self.num_owners).astype(np.int64)
