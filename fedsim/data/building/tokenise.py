"""Tokenise a batch of records into pieces of token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedsim.data.sources.records import EMPTY_TEXT, NULL_TEXT, NULL_USER
from fedsim.data.store import Indices, ranks, runs
from fedsim.data.store.manifest import disk_dtype

Record = tuple[str | None, str | None]
Encode = Callable[[Sequence[str]], Sequence[Sequence[int] | npt.NDArray[Any]]]
Cutting = Literal["split", "truncate", "join"]
Ids = npt.NDArray[np.unsignedinteger[Any]]

SHORT_TEXT = "fewer than 2 tokens"
LONG_TEXT = "longer than 10,000,000 characters"
CUT_TOKENS = "tokens beyond sequence_length"

MOST_CHARACTERS = 10_000_000
"""The longest novels have fewer; a longer text is a file without line ends, and tokenising it
takes a hundred times its size in memory."""


@dataclass(frozen=True, eq=False)
class TokenisedBatch:
    """The token ids of a batch of records.

    Attributes:
        num_records: records read, the dropped ones counted.
        users: per usable text its user.
        pieces: per usable text its number of pieces, int64, at least 1.
        lengths: per piece its number of ids, int64, at least 2.
        ids: of all pieces, end to end, in the narrowest dtype that holds the vocabulary.
        begins_as_ends: per usable text whether its first id is its last; used to join.
        dropped: reason to count: of records, except `CUT_TOKENS`, which counts tokens.
    """

    num_records: int
    users: list[str]
    pieces: Indices
    lengths: Indices
    ids: Ids
    begins_as_ends: npt.NDArray[np.bool_]
    dropped: Counter[str]


@dataclass(frozen=True)
class BatchTokeniser:
    """Encode and cut records into pieces. Sent to worker processes, so it holds settings alone.

    Attributes:
        encode: texts to their ids.
        vocabulary_size: every id is below it.
        sequence_length: most ids of a piece, at least 2.
        cutting: "split", "truncate", or "join", which leaves texts whole: they are cut after they
            are joined with the user's other texts.
    """

    encode: Encode
    vocabulary_size: int
    sequence_length: int
    cutting: Cutting

    @property
    def dtype(self) -> str:
        """Name of the narrowest dtype that holds the vocabulary."""
        return "uint16" if self.vocabulary_size <= 1 << 16 else "uint32"

    def __call__(self, batch: Sequence[Record]) -> TokenisedBatch:
        """Encode and cut one batch.

        Raises:
            ValueError: `encode` gave an id outside the vocabulary.
        """
        dropped: Counter[str] = Counter()
        usable = list(_usable(batch, dropped))
        users: list[str] = []
        texts: list[npt.NDArray[np.int64]] = []
        encoded = self.encode([text for _, text in usable]) if usable else []
        for (user, _), given in zip(usable, encoded, strict=True):
            if len(given) < 2:  # nothing in it to predict
                dropped[SHORT_TEXT] += 1
                continue
            users.append(user)
            texts.append(np.asarray(given, dtype=np.int64))
        sizes = np.array([len(text) for text in texts], np.int64)
        ids = np.concatenate(texts) if texts else np.zeros(0, np.int64)
        self._check(ids)
        ends = np.cumsum(sizes)
        shared = ids[ends - sizes] == ids[ends - 1]
        pieces, lengths = np.ones_like(sizes), sizes
        if self.cutting != "join" and len(sizes) and sizes.max() > self.sequence_length:
            pieces, starts, lengths = self._cut(sizes, ends - sizes, dropped)
            ids = ids[runs(starts, lengths)]
        narrow = ids.astype(disk_dtype(self.dtype))
        return TokenisedBatch(len(batch), users, pieces, lengths, narrow, shared, dropped)

    def _cut(
        self, sizes: Indices, starts: Indices, dropped: Counter[str]
    ) -> tuple[Indices, Indices, Indices]:
        """Return per text its number of pieces, and per piece its start and length.

        Neighbouring pieces share one token, the last of one being the first of the next, so each
        token of a text but its first is predicted exactly once.
        """
        longest = self.sequence_length
        if self.cutting == "truncate":
            dropped[CUT_TOKENS] += int(np.maximum(sizes - longest, 0).sum())
            return np.ones_like(sizes), starts, np.minimum(sizes, longest)
        pieces = -(-(sizes - 1) // (longest - 1))
        within = (longest - 1) * ranks(pieces)
        lengths = np.minimum(np.repeat(sizes, pieces) - within, longest)
        return pieces, np.repeat(starts, pieces) + within, lengths

    def _check(self, ids: npt.NDArray[np.int64]) -> None:
        outside = ids[(ids < 0) | (ids >= self.vocabulary_size)]
        if outside.size:
            raise ValueError(
                f"encode gave the id {outside[0]}, the vocabulary has {self.vocabulary_size}"
            )


def _usable(batch: Sequence[Record], dropped: Counter[str]) -> Iterator[tuple[str, str]]:
    for user, text in batch:
        if user is None:
            dropped[NULL_USER] += 1
        elif text is None:
            dropped[NULL_TEXT] += 1
        elif not text or text.isspace():
            dropped[EMPTY_TEXT] += 1
        elif len(text) > MOST_CHARACTERS:
            dropped[LONG_TEXT] += 1
        else:
            yield user, text
