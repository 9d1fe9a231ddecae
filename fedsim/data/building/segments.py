"""First half of a build: tokenised batches in segments on disk, each sorted by user.

    0007.tokens   ids in the order of the users, within a user in the order of arrival
    0007.users    per example its user, uint32, ascending
    0007.lengths  per example its number of ids, uint32
    0007.others   per example how many own it beside its user, uint32; where texts are co-owned
    0007.owners   their numbers, example after example, uint32; where texts are co-owned
    0007.json     written last: records read, new users, what was dropped; without it, no segment
    read.json     written when the source has been read to its end

A segment with a .json file is synced and final; checksums tell whether it is whole. So a build that
was killed resumes after its last whole segment, and ends with the same store.
"""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from fedsim.data.building.tokenise import BatchTokeniser, Ids, TokenisedBatch
from fedsim.data.store import Indices, runs
from fedsim.data.store.manifest import disk_dtype
from fedsim.data.store.rows import bounds_of, offsets_of
from fedsim.utils.files import file_digest, write_atomically
from fedsim.utils.json_text import digest, is_count, read_json

SEGMENT_TOKENS = 1 << 24  # held in memory, a few copies of them
SEGMENT_EXAMPLES = 1 << 19
_AT_ONCE = 1 << 20  # ids: an index takes 8 bytes, where an id takes 2
_READ = "read.json"


class Head(TypedDict):
    """The content of a segment's .json file; `sha256` is of its other files, by their kind."""

    records: int
    examples: int
    tokens: int
    dropped: dict[str, int]
    new_users: list[str]
    new_owners: list[str]
    sha256: dict[str, str]


class _Read(TypedDict):
    """The content of read.json."""

    segments: int
    dropped: dict[str, int]


class Segments:
    """A folder of segments, and the one that is being filled.

    Attributes:
        folder: of the segments' files.
        users: name to index, in order of the first usable example.
        owners: name to number of all who own an example beside its user, in order of appearance.
        dropped: reason to count, of everything read so far.
        num_records: read so far, those of whole segments only after opening.
        heads: of the whole segments.
        is_read: whether the source has been read to its end.
    """

    def __init__(self, folder: Path, tokeniser: BatchTokeniser, *, co_owned: bool = False) -> None:
        """Open a folder, empty or left behind by a build of the same content."""
        self.folder = folder
        self.dtype = disk_dtype(tokeniser.dtype)
        self.users: dict[str, int] = {}
        self.owners: dict[str, int] = {}
        self._kinds = ("tokens", "users", "lengths", *(("others", "owners") if co_owned else ()))
        self.dropped: Counter[str] = Counter()
        self.num_records = 0
        self.heads: list[Head] = []
        self._joins = tokeniser.joins
        for head in self._heads():
            self.heads.append(head)
            self.num_records += head["records"]
            self.dropped.update(head["dropped"])
            for name in head["new_users"]:
                self.users[name] = len(self.users)
            for name in head["new_owners"]:
                self.owners[name] = len(self.owners)
        read = _read(folder)
        self.is_read = read["segments"] == len(self.heads)
        if self.is_read:
            self.dropped.update(read["dropped"])
        self._begin()

    def add(self, batch: TokenisedBatch) -> None:
        """Add a batch; closes the segment where it is full."""
        known = len(self.users)
        users = self.users
        of_texts = np.array([users.setdefault(name, len(users)) for name in batch.users], "u4")
        ids, lengths = batch.ids, batch.lengths
        if self._joins and len(of_texts):
            ids, lengths = _joined(batch, of_texts, known)
        self._of_examples.append(np.repeat(of_texts, batch.pieces))
        if "owners" in self._kinds:
            self._add_owners(batch)
        self._lengths.append(lengths.astype("u4"))
        self._ids.append(ids)
        self._num_records += batch.num_records
        self._dropped.update(batch.dropped)
        self._num_examples += len(lengths)
        self._num_tokens += len(ids)
        self.num_records += batch.num_records
        self.dropped.update(batch.dropped)
        if self._num_tokens >= SEGMENT_TOKENS or self._num_examples >= SEGMENT_EXAMPLES:
            self._close()

    def _add_owners(self, batch: TokenisedBatch) -> None:
        owners = self.owners
        for user, named, pieces in zip(
            batch.users, batch.owners, batch.pieces.tolist(), strict=True
        ):
            numbers = {owners.setdefault(name, len(owners)) for name in named if name != user}
            self._others.extend([len(numbers)] * pieces)
            self._owners.extend(sorted(numbers) * pieces)

    def finish(self, dropped: Mapping[str, int]) -> None:
        """Close the last segment and note that the source has been read to its end.

        Args:
            dropped: reason to number of records that the source kept back.
        """
        if self._num_records:
            self._close()
        self.dropped.update(dropped)
        note = _Read(segments=len(self.heads), dropped=dict(dropped))
        write_atomically(self.folder / _READ, json.dumps(note))
        self.is_read = True

    def part(self, segment: int, kind: str, first: int, last: int) -> npt.NDArray[Any]:
        """Return items first … last - 1 of a segment's file of a kind."""
        dtype = self.dtype if kind == "tokens" else np.dtype("<u4")
        path = self.folder / f"{segment:04}.{kind}"
        return np.fromfile(path, dtype, last - first, offset=first * dtype.itemsize)

    def _begin(self) -> None:
        self._of_examples: list[npt.NDArray[np.uint32]] = []
        self._lengths: list[npt.NDArray[np.uint32]] = []
        self._ids: list[Ids] = []
        self._others, self._owners = array("I"), array("I")
        self._dropped: Counter[str] = Counter()
        self._num_records = self._num_examples = self._num_tokens = 0
        self._num_known, self._num_known_owners = len(self.users), len(self.owners)

    def _close(self) -> None:
        """Write the segment, sorted: the sort is stable, a user's examples stay as they came."""
        empty = np.zeros(0, "u4")
        users = np.concatenate([empty, *self._of_examples])
        lengths = np.concatenate([empty, *self._lengths])
        order = np.argsort(users, kind="stable")
        ids = np.concatenate([np.zeros(0, self.dtype), *self._ids])
        name = f"{len(self.heads):04}"
        _write(self.folder / f"{name}.users", [users[order].astype("<u4")])
        _write(self.folder / f"{name}.lengths", [lengths[order].astype("<u4")])
        _write(self.folder / f"{name}.tokens", ordered(ids, lengths.astype(np.int64), order))
        if "owners" in self._kinds:
            others = np.asarray(self._others, np.int64)
            owners = np.asarray(self._owners, "<u4")
            moved = runs((np.cumsum(others) - others)[order], others[order])
            _write(self.folder / f"{name}.others", [others[order].astype("<u4")])
            _write(self.folder / f"{name}.owners", [owners[moved]])
        head = Head(
            records=self._num_records,
            examples=self._num_examples,
            tokens=self._num_tokens,
            dropped=dict(self._dropped),
            new_users=list(self.users)[self._num_known :],
            new_owners=list(self.owners)[self._num_known_owners :],
            sha256=_digests(self.folder / name, self._kinds),
        )
        head["sha256"]["head"] = digest({**head, "sha256": ""})
        write_atomically(self.folder / f"{name}.json", json.dumps(head))
        self.heads.append(head)
        self._begin()

    def _heads(self) -> Iterator[Head]:
        """Yield the heads of whole segments, up to the first that is missing or has lost bytes."""
        for segment in count():
            path = self.folder / f"{segment:04}.json"
            head = self._whole(path) if path.exists() else None
            if head is None:
                return
            yield head

    def _whole(self, path: Path) -> Head | None:
        """Return a segment's head, or None where it or a file of it is not as it was written."""
        try:
            head: Head = read_json(path)
            digests = _digests(path.with_suffix(""), self._kinds)
            if head["sha256"] != {**digests, "head": digest({**head, "sha256": ""})}:
                return None
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return head


def ordered(ids: Ids, lengths: Indices, order: Indices) -> Iterator[Ids]:
    """Yield the ids of the examples in `order`, about `_AT_ONCE` at a time.

    Args:
        ids: of examples end to end.
        lengths: of the examples, int64.
        order: example numbers in the order wanted.
    """
    starts = np.cumsum(lengths) - lengths
    for first, last in pairwise(bounds_of(offsets_of(lengths[order]), _AT_ONCE)):
        chosen = order[first:last]
        yield ids[runs(starts[chosen], lengths[chosen])]


def _joined(
    batch: TokenisedBatch, of_texts: npt.NDArray[np.uint32], num_known: int
) -> tuple[Ids, Indices]:
    """Drop the begin token of texts that follow another of their user, if it is the end token too.

    So it stands between two texts once. Users below
    `num_known` had a text before this batch.
    """
    is_first = np.zeros(len(of_texts), np.bool_)
    new, places = np.unique(of_texts, return_index=True)
    is_first[places[new >= num_known]] = True
    shortened = ~is_first & batch.begins_as_ends
    starts = np.cumsum(batch.lengths) - batch.lengths
    return np.delete(batch.ids, starts[shortened]), batch.lengths - shortened


def _read(folder: Path) -> _Read:
    """Return what is noted of the source, or no segments where it was not read to its end."""
    path = folder / _READ
    if not path.exists():
        return _Read(segments=-1, dropped={})
    try:
        read: _Read = read_json(path)
        sound = is_count(read["segments"]) and all(map(is_count, read["dropped"].values()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        sound = False
    return read if sound else _Read(segments=-1, dropped={})


def _digests(segment: Path, kinds: Sequence[str]) -> dict[str, str]:
    """Return the SHA-256 (hex) of each of a segment's files, by its kind."""
    return {kind: file_digest(segment.with_suffix(f".{kind}")) for kind in kinds}


def _write(path: Path, chunks: Any) -> None:  # noqa: ANN401
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk.tobytes())
        file.flush()
        os.fsync(file.fileno())
