"""Second half of a build: the store's files, written bucket after bucket."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedsim.data.building.buckets import Buckets, ordered
from fedsim.data.store import Indices, ranks
from fedsim.data.store import manifest as layout
from fedsim.data.store.keys import example_keys, user_keys
from fedsim.data.store.rows import offsets_of


def write_examples(buckets: Buckets, folder: Path, joined: int | None) -> tuple[int, int]:
    """Write tokens, offsets, names and keys by user; return the numbers of examples and of tokens.

    Memory: a few numbers for each user, and for each example of a bucket.

    Args:
        buckets: everything that was read.
        folder: where the files go.
        joined: where texts are joined, the most tokens of an example: the tokens stay as they are,
            and only the offsets of examples change. Else None.
    """
    examples = buckets.examples if joined is None else -(-buckets.tokens // joined)
    write_names(folder / layout.USERS, buckets.users)
    user_offsets = offsets_of(examples)
    np.save(folder / layout.USER_OFFSETS, user_offsets)
    num_examples = int(user_offsets[-1])
    with (
        (folder / layout.TOKENS).open("wb") as token_file,
        (folder / layout.EXAMPLE_OFFSETS).open("wb") as offset_file,
    ):
        _begin_array(offset_file, num_examples + 1, "<i8")
        offset_file.write(np.zeros(1, "<i8").tobytes())
        done = 0
        for rows in buckets.read():
            order = np.argsort(rows.users, kind="stable")  # a user's examples stay as they came
            for piece in ordered(rows.tokens, rows.lengths, order):
                token_file.write(piece.tobytes())
            lengths = rows.lengths[order].astype(np.int64)
            if joined is not None:
                mine = slice(rows.users[order[0]], rows.users[order[-1]] + 1)
                lengths = _equal_parts(buckets.tokens[mine], examples[mine])
            ends = done + np.cumsum(lengths)
            offset_file.write(ends.astype("<i8").tobytes())
            done = int(ends[-1])
    _write_keys(folder, rows.tokens.dtype, len(buckets.users))
    return num_examples, done


def write_names(path: Path, names: Iterable[str]) -> None:
    """Write a JSON string a line."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(name) + "\n" for name in names)


def _begin_array(file: BinaryIO, size: int, dtype: str) -> None:
    """Write what `np.save` writes before a row of that length and type."""
    header = {"descr": dtype, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(file, header)


def _write_keys(folder: Path, dtype: np.dtype[np.integer], num_users: int) -> None:
    """Write the keys of users and examples."""
    np.save(folder / layout.USER_KEYS, user_keys(folder / layout.USERS, num_users))
    tokens = np.asarray(np.memmap(folder / layout.TOKENS, dtype, mode="r"))
    offsets = np.load(folder / layout.EXAMPLE_OFFSETS, mmap_mode="r")
    with (folder / layout.EXAMPLE_KEYS).open("wb") as file:
        _begin_array(file, len(offsets) - 1, "<u8")
        for keys in example_keys(tokens, offsets):
            file.write(keys.astype("<u8").tobytes())


def _equal_parts(sizes: Indices, pieces: Indices) -> Indices:
    """Return the lengths of so many pieces of each size, which differ by one at the most."""
    whole, count = np.repeat(sizes, pieces), np.repeat(pieces, pieces)
    piece = ranks(pieces)
    lengths: Indices = (piece + 1) * whole // count - piece * whole // count
    return lengths
