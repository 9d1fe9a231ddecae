"""A user-partitioned token store: a folder in which any user's examples are found in O(1).

    manifest.json        format version, counts, how the tokens were made, what was dropped
    tokens.bin           all token ids, uint16 or uint32, little-endian, ordered by user
    example_offsets.npy  int64, examples + 1: example e is tokens[offsets[e] : offsets[e + 1]]
    user_offsets.npy     int64, users + 1: user u has the examples offsets[u] … offsets[u + 1] - 1
    users.jsonl          the users' names, one JSON string a line

Everything large is memory-mapped: opening takes milliseconds, and worker processes on one machine
share the pages. The store holds the private text: keep the folder where the source may be kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from fedsim.errors import ConfigError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
TOKENS = "tokens.bin"
EXAMPLE_OFFSETS = "example_offsets.npy"
USER_OFFSETS = "user_offsets.npy"
USERS = "users.jsonl"

Indices = npt.NDArray[np.int64]


class Manifest(TypedDict):
    """What a store says of itself, the content of manifest.json.

    Keys:
        version: of the format.
        users: number of users, each with at least one example.
        examples: number of examples.
        tokens: number of token ids, begin and end tokens counted.
        tokenizer_fingerprint: SHA-256 (hex) of the tokenizer that made the ids.
        sequence_length: most tokens an example may have.
        cutting: what happened to longer texts, "split" or "truncate".
        dropped: reason to count, for everything in the source that is not in the store.
        dtype: of the stored ids, "uint16" or "uint32".
        source: where the records came from, in words.
    """

    version: int
    users: int
    examples: int
    tokens: int
    tokenizer_fingerprint: str
    sequence_length: int
    cutting: str
    dropped: dict[str, int]
    dtype: str
    source: str


class TokenStore:
    """A store opened for reading; sending it to another process sends its path alone."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        # Plain arrays over the mapped pages: np.memmap costs microseconds for every slice.
        self._tokens = np.asarray(np.memmap(path / TOKENS, disk_dtype(manifest["dtype"]), mode="r"))
        self._example_offsets = np.asarray(np.load(path / EXAMPLE_OFFSETS, mmap_mode="r"))
        self._user_offsets = np.asarray(np.load(path / USER_OFFSETS, mmap_mode="r"))

    @classmethod
    def open(cls, path: Path | str) -> TokenStore:
        """Open a folder that `build_store` made.

        Raises:
            ConfigError: not a store, a store of another format version, or a damaged one.
        """
        folder = Path(path).expanduser().resolve()
        manifest = _read_manifest(folder)
        try:
            store = cls(folder, manifest)
        except (OSError, ValueError, TypeError) as error:
            raise _damaged(folder, str(error)) from error
        found = len(store._user_offsets) - 1, len(store._example_offsets) - 1, len(store._tokens)
        if found != (manifest["users"], manifest["examples"], manifest["tokens"]):
            raise _damaged(
                folder, f"users, examples and tokens are {found}, {MANIFEST} says otherwise"
            )
        return store

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return TokenStore.open, (self.path,)

    @property
    def num_users(self) -> int:
        """Number of users."""
        return self.manifest["users"]

    @property
    def num_examples(self) -> int:
        """Number of examples of all users."""
        return self.manifest["examples"]

    @property
    def num_tokens(self) -> int:
        """Number of token ids, begin and end tokens counted."""
        return self.manifest["tokens"]

    @property
    def user_offsets(self) -> Indices:
        """First example of each user and, last, the number of examples: int64, users + 1."""
        return self._user_offsets

    def user_examples(self, user: int) -> Indices:
        """Return the indices of one user's examples, ascending, never empty.

        Raises:
            IndexError: there is no such user.
        """
        _check(user, self.num_users, "user")
        return np.arange(self._user_offsets[user], self._user_offsets[user + 1], dtype=np.int64)

    def example(self, index: int) -> npt.NDArray[np.uint16] | npt.NDArray[np.uint32]:
        """Return a read-only view of one example's token ids, 2 to sequence_length of them.

        Raises:
            IndexError: there is no such example.
        """
        _check(index, self.num_examples, "example")
        return self._tokens[self._example_offsets[index] : self._example_offsets[index + 1]]

    def lengths(self, indices: Indices) -> Indices:
        """Return the number of tokens of each of these examples: int64, the shape of `indices`."""
        lengths: Indices = self._example_offsets[indices + 1] - self._example_offsets[indices]
        return lengths

    def padded(self, indices: Indices) -> tuple[Indices, Indices]:
        """Return these examples as one block.

        Returns:
            tokens: (examples, longest of them) int64, padded with 0 on the right.
            lengths: (examples,) int64.
            No indices give shapes (0, 0) and (0,).
        """
        if len(indices) == 0:
            return np.zeros((0, 0), np.int64), np.zeros(0, np.int64)
        lengths = self.lengths(indices)
        columns = np.arange(lengths.max())
        inside = columns < lengths[:, None]
        tokens = np.zeros(inside.shape, np.int64)
        tokens[inside] = self._tokens[(self._example_offsets[indices][:, None] + columns)[inside]]
        return tokens, lengths


def disk_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of tokens.bin: little-endian on every machine."""
    return np.dtype(name).newbyteorder("<")


def is_store(path: Path) -> bool:
    """Return whether the folder looks like a token store, of whatever version."""
    return (path / MANIFEST).is_file() and (path / TOKENS).is_file()


def _read_manifest(folder: Path) -> Manifest:
    if not is_store(folder):
        raise ConfigError(
            f"store {str(folder)!r}: not a token store; make one with fedsim data build"
        )
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        version, keys = content["version"], set(content)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(folder, f"{MANIFEST}: {error!r}") from error
    if version != FORMAT_VERSION:
        raise ConfigError(
            f"store {str(folder)!r}: format version {version!r}, this fedsim reads "
            f"{FORMAT_VERSION}; build it again"
        )
    if missing := set(Manifest.__annotations__) - keys:
        raise _damaged(folder, f"{MANIFEST} lacks {', '.join(sorted(missing))}")
    manifest: Manifest = content
    return manifest


def _damaged(folder: Path, what: str) -> ConfigError:
    return ConfigError(f"store {str(folder)!r}: damaged: {what}; build it again")


def _check(index: int, count: int, what: str) -> None:
    if not 0 <= index < count:
        raise IndexError(f"{what} {index}: the store has {count}")
