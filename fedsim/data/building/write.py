"""Second half of a build: write the store's files bucket by bucket, and the owner graph."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from fedsim.data.building.buckets import Buckets, Rows, ordered
from fedsim.data.store import Indices, ranks, runs
from fedsim.data.store import manifest as layout
from fedsim.data.store.keys import example_keys, user_keys
from fedsim.data.store.manifest import OwnerCounts
from fedsim.data.store.rows import offsets_of
from fedsim.seeding import hashes

_START = 0x66656473696D2F34  # start value for hashes of owners


def write_examples(buckets: Buckets, folder: Path, joined: int | None) -> tuple[int, int]:
    """Write tokens, offsets, names and keys by user; return the numbers of examples and tokens.

    Memory: a few numbers for each user, and for each example of one bucket.

    Args:
        buckets: all tokenised examples.
        folder: output folder.
        joined: maximum number of tokens of an example if texts are joined, which changes only the
            offsets of examples; else None.
    """
    examples = buckets.examples if joined is None else -(-buckets.tokens // joined)
    _write_names(folder / layout.USERS, buckets.users)
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
            order = np.argsort(rows.users, kind="stable")  # keeps the order of a user's examples
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


def _write_names(path: Path, names: Iterable[str]) -> None:
    """Write one JSON string per line."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(name) + "\n" for name in names)


def _begin_array(file: BinaryIO, size: int, dtype: str) -> None:
    """Write the header that `np.save` writes for a row of this length and type."""
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
    """Divide each size into `pieces` lengths that differ by at most one; return the lengths."""
    whole, count = np.repeat(sizes, pieces), np.repeat(pieces, pieces)
    piece = ranks(pieces)
    lengths: Indices = (piece + 1) * whole // count - piece * whole // count
    return lengths


def write_owners(buckets: Buckets, folder: Path) -> OwnerCounts:
    """Write the owner graph of a new store, and replace the examples' keys by keys from the graph.

    If the user is the only owner of every example, no file is written, as for a source without
    owners. Memory: the owners' names, and about 40 bytes for each pair of an example and an owner.

    Args:
        buckets: all tokenised examples.
        folder: folder of the store's other files.
    """
    users, pairs = buckets.users, buckets.num_pairs
    if pairs == 0:
        return OwnerCounts(owners=len(users), pairs=0)
    others = [name for name in buckets.owners if name not in users]
    _write_names(folder / layout.OWNERS, others)
    mine = np.load(folder / layout.USER_KEYS)
    theirs = user_keys(folder / layout.OWNERS, len(others))
    keys = np.concatenate([mine, theirs])
    np.save(folder / layout.OWNER_KEYS, keys)
    places = users | {name: len(users) + place for place, name in enumerate(others)}
    index = np.array([places[name] for name in buckets.owners], np.int64)
    _write_by_example(buckets, folder, index)
    _write_example_keys(folder, keys)
    return OwnerCounts(owners=len(keys), pairs=pairs)


def _write_by_example(buckets: Buckets, folder: Path, index: Indices) -> None:
    """Write the owners of each example, its user first, and their offsets."""
    counts, owners = zip(*(_by_example(rows, index) for rows in buckets.read()), strict=True)
    np.save(folder / layout.EXAMPLE_OWNER_OFFSETS, offsets_of(np.concatenate(counts)))
    np.save(folder / layout.EXAMPLE_OWNERS, np.concatenate(owners))


def _by_example(rows: Rows, index: Indices) -> tuple[Indices, Indices]:
    """Return the number of owners of each example of a bucket, in store order, and the owners."""
    order = np.argsort(rows.users, kind="stable")
    user, count = rows.users[order].astype(np.int64), rows.others.astype(np.int64)
    other = index[rows.owners[runs((np.cumsum(count) - count)[order], count[order])]]
    count = count[order]
    other = other[np.lexsort((other, np.repeat(np.arange(len(count)), count)))]
    whole = count + 1
    owners = np.empty(int(whole.sum()), np.int64)
    first_place = np.cumsum(whole) - whole
    owners[first_place] = user
    owners[runs(first_place + 1, count)] = other
    return whole, owners


def _write_example_keys(folder: Path, keys: npt.NDArray[np.uint64]) -> None:
    """Replace the examples' keys by keys that depend only on the graph and the order.

    With keys from tokens, the text of one owner would decide which examples of others are drawn
    first. The key is a hash of the user, the set of owners, and the position among the examples of
    that user with the same owners.
    """
    starts = np.load(folder / layout.EXAMPLE_OWNER_OFFSETS)[:-1]
    of_owners = keys[np.load(folder / layout.EXAMPLE_OWNERS)]
    sets = np.add.reduceat(hashes(_START, of_owners), starts)
    alike = hashes(hashes(of_owners[starts], sets), np.zeros(len(sets), np.int64))
    _, group, sizes = np.unique(alike, return_inverse=True, return_counts=True)
    place = np.empty(len(alike), np.int64)
    place[np.argsort(group, kind="stable")] = ranks(sizes)
    np.save(folder / layout.EXAMPLE_KEYS, hashes(alike, place))
