"""Token store partitioned by user: a folder with O(1) access to a user's examples.

    manifest.json        format version, tokenizer and cutting, counts, and the size and SHA-256 of
                         the other files
    tokens.bin           all tokens, little-endian, ordered by user: ids as uint16 or uint32; with
                         context tokens, int16 or int32 and -1 - id for a context token
    example_offsets.npy  int64, examples + 1: example e is tokens[offsets[e] : offsets[e + 1]]
    user_offsets.npy     int64, users + 1: user u has the examples offsets[u] … offsets[u + 1] - 1
    users.jsonl          the users' names, one JSON string per line
    user_keys.npy        uint64, users: a digest of each name, the address of the user's draws
    example_keys.npy     uint64, examples: a hash of the tokens, the address of the example's draws
    and the files of `owner_graph.py`, if an example has several owners

Large files are memory-mapped: opening takes milliseconds, and worker processes on one machine share
the pages. The store holds the private text: protect it like the source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.store import manifest as layout
from fedsim.data.store.keys import AT_ONCE
from fedsim.data.store.manifest import Manifest, damaged, read_manifest
from fedsim.data.store.owner_graph import OwnerGraph
from fedsim.data.store.rows import Indices, open_row, runs
from fedsim.seeding import Hashes


class TokenStore:
    """A store opened for reading. Pickling sends only its path to another process.

    Attributes:
        path: the folder.
        manifest: counts, tokenizer and cutting.
        user_offsets: (users + 1,) int64, the first example of each user; last, the total.
        user_keys: (users,) uint64, a digest of each user's name.
        example_keys: (examples,) uint64, a hash of each example's tokens; with a graph, a hash of
            its position in the graph.
        graph: owners of the examples, if some example has several; else None.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        # A plain array over the mapped pages: slices of np.memmap are slower.
        self._tokens = np.asarray(
            np.memmap(path / layout.TOKENS, layout.disk_dtype(manifest["dtype"]), mode="r")
        )
        self.num_tokens = len(self._tokens)  # including begin and end tokens
        self._example_offsets = open_row(path / layout.EXAMPLE_OFFSETS, np.int64)
        self.num_examples = len(self._example_offsets) - 1
        self.user_offsets = open_row(path / layout.USER_OFFSETS, np.int64)
        self.num_users = len(self.user_offsets) - 1
        self.user_keys: Hashes = open_row(path / layout.USER_KEYS, np.uint64)
        self.example_keys: Hashes = open_row(path / layout.EXAMPLE_KEYS, np.uint64)
        self.graph: OwnerGraph | None = None
        if manifest.get("owners", {"pairs": 0})["pairs"]:
            self.graph = OwnerGraph.open(path, manifest["users"])

    @classmethod
    def open(cls, path: Path | str) -> TokenStore:
        """Open a folder that `build_store` made.

        Raises:
            ConfigError: the folder is not a store, or the store has another version or is damaged.
        """
        folder = Path(path).expanduser().resolve()
        manifest = read_manifest(folder)
        layout.check_sizes(folder, manifest)
        try:
            return cls(folder, manifest)
        except (OSError, ValueError, TypeError) as error:
            raise damaged(folder, str(error)) from error

    def verify(self) -> None:
        """Read and check every byte.

        Raises:
            ConfigError: a file changed; the message names it.
        """
        layout.verify(self.path, self.manifest)

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return TokenStore.open, (self.path,)

    @property
    def num_counted(self) -> int:
        """Number of predicted tokens that count in the loss; reads all tokens if not all count."""
        if self.manifest["loss_on"] == "all":
            return self.num_tokens - self.num_examples
        firsts = self._tokens[self._example_offsets[:-1]] >= 0  # a first token is never predicted
        starts = range(0, self.num_tokens, AT_ONCE)  # one mask would be half as large as the store
        parts = (self._tokens[start : start + AT_ONCE] >= 0 for start in starts)
        return int(sum(map(np.count_nonzero, parts)) - np.count_nonzero(firsts))

    def user_examples(self, user: int) -> Indices:
        """Return the indices of one user's examples, ascending, never empty."""
        return np.arange(self.user_offsets[user], self.user_offsets[user + 1], dtype=np.int64)

    def example(self, index: int) -> npt.NDArray[np.integer[Any]]:
        """Return a read-only view of one example's tokens, 2 to sequence_length of them."""
        return self._tokens[self._example_offsets[index] : self._example_offsets[index + 1]]

    def lengths(self, indices: Indices) -> Indices:
        """Return the number of tokens of each of these examples: int64, the shape of `indices`."""
        lengths: Indices = self._example_offsets[indices + 1] - self._example_offsets[indices]
        return lengths

    def padded(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return these examples as one block.

        Returns:
            tokens: (examples, longest example) int64, padded with 0 on the right; ids, and -1 - id
                for context tokens.
            lengths: (examples,) int64.
            Without indices the shapes are (0, 0) and (0,).
        """
        if len(indices) == 0:
            return np.zeros((0, 0), np.int64), np.zeros(0, np.int64)
        lengths = self.lengths(indices)
        tokens = np.zeros((len(indices), int(lengths.max())), np.int64)
        inside = np.arange(tokens.shape[1]) < lengths[:, None]
        tokens[inside] = self._tokens[runs(self._example_offsets[indices], lengths)]
        return tokens, lengths
