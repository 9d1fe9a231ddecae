"""The owner graph of a store whose texts can have several owners, written some users at a time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedsim.data.building.buckets import Buckets, Rows
from fedsim.data.building.write import begin_array, begin_offsets, write_names
from fedsim.data.store import Indices, runs
from fedsim.data.store import manifest as layout
from fedsim.data.store.keys import user_keys
from fedsim.data.store.manifest import OwnerCounts
from fedsim.data.store.rows import bounds_of, offsets_of, ranks
from fedsim.seeding import hashes

_AT_ONCE = 1 << 19  # examples, or pairs, that are looked at together
_START = 0x66656473696D2F34  # the start of hashes of owners


def write_owners(buckets: Buckets, folder: Path) -> OwnerCounts:
    """Write the owner graph beside the other files of a new store, and examples' keys made of it.

    Nothing is written where every example has no owner but its user: the store is then the same as
    one whose source names no owners. Held in memory: the owners' names, a few numbers an owner, and
    `_AT_ONCE` examples, or those of a bucket, with their owners.

    Args:
        buckets: everything that was read.
        folder: where the store's other files are.
    """
    users, pairs = buckets.users, buckets.num_pairs
    if pairs == 0:
        return OwnerCounts(owners=len(users), pairs=0)
    others = [name for name in buckets.owners if name not in users]
    write_names(folder / layout.OWNERS, others)
    mine = np.load(folder / layout.USER_KEYS)
    theirs = user_keys(folder / layout.OWNERS, len(others))
    keys = np.concatenate([mine, theirs])
    np.save(folder / layout.OWNER_KEYS, keys)
    places = users | {name: len(users) + place for place, name in enumerate(others)}
    index = np.array([places[name] for name in buckets.owners], np.int64)
    _write_by_example(buckets, folder, index)
    _write_by_owner(folder, len(keys))
    _write_example_keys(folder, keys)
    return OwnerCounts(owners=len(keys), pairs=pairs)


def _write_by_example(buckets: Buckets, folder: Path, index: Indices) -> None:
    """Write each example's owners, its user first, and where they begin."""
    num_examples = int(buckets.examples.sum())
    with (
        (folder / layout.EXAMPLE_OWNERS).open("wb") as owner_file,
        (folder / layout.EXAMPLE_OWNER_OFFSETS).open("wb") as offset_file,
    ):
        begin_array(owner_file, num_examples + buckets.num_pairs, "<i8")
        begin_offsets(offset_file, num_examples + 1)
        done = 0
        for rows in buckets.read():
            counts, owners = _by_example(rows, index)
            ends = done + np.cumsum(counts)
            owner_file.write(owners.astype("<i8").tobytes())
            offset_file.write(ends.astype("<i8").tobytes())
            done = int(ends[-1])


def _by_example(rows: Rows, index: Indices) -> tuple[Indices, Indices]:
    """Return the owners of a bucket's examples, in the order of the store, and their numbers."""
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


def _write_by_owner(folder: Path, num_owners: int) -> None:
    """Write the same pairs by owner: a counting sort, chunk after chunk."""
    offsets = np.load(folder / layout.EXAMPLE_OWNER_OFFSETS, mmap_mode="r")
    owners = np.load(folder / layout.EXAMPLE_OWNERS, mmap_mode="r")
    counts = np.zeros(num_owners, np.int64)
    for start in range(0, len(owners), _AT_ONCE):
        counts += np.bincount(owners[start : start + _AT_ONCE], minlength=num_owners)
    owner_offsets = offsets_of(counts)
    np.save(folder / layout.OWNER_EXAMPLE_OFFSETS, owner_offsets)
    examples = np.lib.format.open_memmap(
        folder / layout.OWNER_EXAMPLES, "w+", np.dtype("<i8"), (len(owners),)
    )
    place = owner_offsets[:-1].copy()
    for first in range(0, len(offsets) - 1, _AT_ONCE):
        last = min(first + _AT_ONCE, len(offsets) - 1)
        low, high = int(offsets[first]), int(offsets[last])
        whose = np.asarray(owners[low:high])
        example = np.repeat(np.arange(first, last), np.diff(offsets[first : last + 1]))
        order = np.argsort(whose, kind="stable")  # so an owner's examples stay ascending
        held = np.bincount(whose, minlength=num_owners)
        examples[place[whose[order]] + ranks(held)] = example[order]
        place += held
    examples.flush()


def _write_example_keys(folder: Path, keys: npt.NDArray[np.uint64]) -> None:
    """Replace the examples' keys by ones that are functions of the graph and the order alone.

    A key of the tokens would let what one owner wrote decide which examples of others are drawn
    first. The key is a hash of the user, the set of owners, and the place among the examples of
    that user with the same owners.
    """
    user_offsets = np.load(folder / layout.USER_OFFSETS)
    offsets = np.load(folder / layout.EXAMPLE_OWNER_OFFSETS, mmap_mode="r")
    owners = np.load(folder / layout.EXAMPLE_OWNERS, mmap_mode="r")
    with (folder / layout.EXAMPLE_KEYS).open("wb") as file:
        begin_array(file, int(user_offsets[-1]), "<u8")
        for first, last in pairwise(bounds_of(user_offsets, _AT_ONCE)):
            low, high = int(user_offsets[first]), int(user_offsets[last])
            starts = np.asarray(offsets[low : high + 1]) - offsets[low]
            of_owners = keys[np.asarray(owners[offsets[low] : offsets[high]])]
            sets = np.add.reduceat(hashes(_START, of_owners), starts[:-1])
            user = of_owners[starts[:-1]]
            alike = hashes(hashes(user, sets), np.zeros(len(sets), np.int64))
            order = np.argsort(alike, kind="stable")
            fresh = np.flatnonzero(np.diff(alike[order], prepend=alike[order][:1] + np.uint64(1)))
            place = np.empty(len(alike), np.int64)
            place[order] = ranks(np.diff(np.append(fresh, len(alike))))
            file.write(hashes(alike, place).astype("<u8").tobytes())
