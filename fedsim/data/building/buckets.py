"""First half of a build: write tokenised examples to disk, in buckets of some thousand users.

A bucket has one file for each field of `Rows`, with rows in the order of arrival. Only one bucket
is sorted at a time, so the memory of a build does not grow with the source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedsim.data.building.tokenise import BatchTokeniser, Ids, TokenisedBatch
from fedsim.data.store import Indices, runs
from fedsim.data.store.manifest import disk_dtype
from fedsim.data.store.rows import bounds_of, offsets_of

USERS = 1 << 12
"""Users per bucket: bucket b has the users b * USERS … (b + 1) * USERS - 1."""
BUFFERED = 1 << 22  # tokens in memory before they are written
_AT_ONCE = 1 << 20  # ids at a time: an index takes 8 bytes, an id takes 2


Numbers = npt.NDArray[np.uint32]


class Rows(NamedTuple):
    """Examples, one after the other.

    Attributes:
        users: (examples,) uint32, the user of each example.
        lengths: (examples,) uint32, the number of ids of each example.
        tokens: all ids, concatenated, in the dtype of the store.
        others: (examples,) uint32, the number of further owners of each example.
        owners: uint32, the numbers of those owners, concatenated.
    """

    users: Numbers
    lengths: Numbers
    tokens: Ids
    others: Numbers
    owners: Numbers

    def taken(self, order: Indices) -> Rows:
        """Return these examples in this order."""
        of_tokens, of_owners = (
            runs(offsets_of(counts)[order], counts[order].astype(np.int64))
            for counts in (self.lengths, self.others)
        )
        return Rows(
            self.users[order],
            self.lengths[order],
            self.tokens[of_tokens],
            self.others[order],
            self.owners[of_owners],
        )


class Buckets:
    """A folder of buckets: first filled, then read.

    Attributes:
        users: name to index, in order of the first usable text.
        owners: name to number of the further owners of examples, in order of appearance.
        examples: (users,) int64, the number of written examples of each user.
        tokens: (users,) int64, the number of written tokens of each user.
        dropped: number of dropped items, per reason.
        num_records: number of records read so far.
        num_pairs: number of pairs of an example and a further owner.
    """

    def __init__(self, folder: Path, tokeniser: BatchTokeniser) -> None:
        self.users: dict[str, int] = {}
        self.owners: dict[str, int] = {}
        self.examples = self.tokens = np.zeros(0, np.int64)
        self.dropped: Counter[str] = Counter()
        self.num_records = self.num_pairs = 0
        self._folder = folder
        self._joins = tokeniser.joins
        self._dtypes = Rows("<u4", "<u4", disk_dtype(tokeniser.dtype), "<u4", "<u4")  # type: ignore[arg-type]
        self._waiting: list[Rows] = []
        self._num_waiting = 0

    def add(self, batch: TokenisedBatch) -> None:
        """Add a batch."""
        self.num_records += batch.num_records
        self.dropped.update(batch.dropped)
        if not batch.users:
            return
        known, users = len(self.users), self.users
        of_texts = np.array([users.setdefault(name, len(users)) for name in batch.users], "u4")
        ids, lengths = batch.ids, batch.lengths
        if self._joins:
            ids, lengths = _joined(batch, of_texts, known)
        rows = Rows(
            np.repeat(of_texts, batch.pieces), lengths.astype("u4"), ids, *self._owners_of(batch)
        )
        self._waiting.append(rows)
        self._num_waiting += len(ids)
        if self._num_waiting >= BUFFERED:
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows."""
        if not self._waiting:
            return
        rows = Rows(*map(np.concatenate, zip(*self._waiting, strict=True)))
        self._waiting, self._num_waiting = [], 0
        count, new_users = len(self.users), (0, len(self.users) - len(self.examples))
        self.examples = np.pad(self.examples, new_users) + np.bincount(rows.users, minlength=count)
        # `bincount` counts in float64, which is exact for these sizes.
        tokens = np.bincount(rows.users, rows.lengths, count).astype(np.int64)
        self.tokens = np.pad(self.tokens, new_users) + tokens
        self.num_pairs += len(rows.owners)
        bucket = rows.users // USERS
        for number in np.unique(bucket).tolist():
            part = rows.taken(np.flatnonzero(bucket == number))
            for path, values, dtype in zip(self._files(number), part, self._dtypes, strict=True):
                with path.open("ab") as file:
                    file.write(values.astype(dtype).tobytes())

    def read(self) -> Iterator[Rows]:
        """Yield each bucket's rows, in the order of arrival; the ids are memory-mapped."""
        for number in range(-(-len(self.users) // USERS)):
            rows = zip(self._files(number), self._dtypes, strict=True)
            yield Rows(*(_mapped(path, dtype) for path, dtype in rows))

    def _files(self, number: int) -> Iterator[Path]:
        return (self._folder / f"{number}.{field}" for field in Rows._fields)

    def _owners_of(self, batch: TokenisedBatch) -> tuple[Any, Any]:
        """Return the number of further owners of each piece, and those owners."""
        numbers, counts, owners = self.owners, [], []
        for user, named, pieces in zip(
            batch.users, batch.owners, batch.pieces.tolist(), strict=True
        ):
            others = {numbers.setdefault(name, len(numbers)) for name in named if name != user}
            counts += [len(others)] * pieces
            owners += sorted(others) * pieces
        return np.array(counts, "u4"), np.array(owners, "u4")


def _mapped(path: Path, dtype: Any) -> npt.NDArray[Any]:  # noqa: ANN401
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.zeros(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))


def ordered(ids: Ids, lengths: npt.NDArray[Any], order: Indices) -> Iterator[Ids]:
    """Yield the ids of the examples in `order`, about `_AT_ONCE` at a time.

    Args:
        ids: ids of all examples, concatenated.
        lengths: lengths of the examples.
        order: example numbers in output order.
    """
    starts, sizes = offsets_of(lengths), lengths.astype(np.int64)
    for first, last in pairwise(bounds_of(offsets_of(sizes[order]), _AT_ONCE)):
        chosen = order[first:last]
        yield ids[runs(starts[chosen], sizes[chosen])]


def _joined(
    batch: TokenisedBatch, of_texts: npt.NDArray[np.uint32], num_known: int
) -> tuple[Ids, Indices]:
    """Drop the begin token of a user's later texts if it equals the end token.

    So this token occurs once between two texts. Users below `num_known` had a text before this
    batch.
    """
    is_first = np.zeros(len(of_texts), np.bool_)
    new, places = np.unique(of_texts, return_index=True)
    is_first[places[new >= num_known]] = True
    shortened = ~is_first & batch.begins_as_ends
    starts = np.cumsum(batch.lengths) - batch.lengths
    return np.delete(batch.ids, starts[shortened]), batch.lengths - shortened
