"""The first pass of a build: texts become pieces of token ids, kept in the order they arrive."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import BinaryIO, Literal

import numpy as np

from fedsim.data.store import disk_dtype

Record = tuple[str | None, str | None]
Encode = Callable[[Sequence[str]], list[list[int]]]
Cutting = Literal["split", "truncate", "join"]

NULL_USER = "null user"
NULL_TEXT = "null text"
EMPTY_TEXT = "empty text"
SHORT_TEXT = "fewer than 2 tokens"
CUT_TOKENS = "tokens beyond sequence_length"


class Arrivals:
    """Tokens go to a file as they come; two 32-bit integers an example stay in memory.

    Attributes:
        users: name to index, in order of the first usable example.
        user_of: per example its user.
        lengths: per example its number of tokens.
        dropped: reason to count: of records, except `CUT_TOKENS`, which counts tokens.
        dtype: name of the dtype of the ids in the file, the narrowest that holds the vocabulary.
    """

    def __init__(
        self,
        file: BinaryIO,
        *,
        encode: Encode,
        vocabulary_size: int,
        sequence_length: int,
        cutting: Cutting,
    ) -> None:
        self.users: dict[str, int] = {}
        self.user_of = array("I")
        self.lengths = array("I")
        self.dropped: Counter[str] = Counter()
        self.dtype = "uint16" if vocabulary_size <= 1 << 16 else "uint32"
        self._file = file
        self._encode = encode
        self._vocabulary_size = vocabulary_size
        self._sequence_length = sequence_length
        self._cutting = cutting
        self._begun: set[int] = set()

    def add(self, batch: Sequence[Record]) -> None:
        """Encode one batch of records and append what is usable."""
        usable = list(self._usable(batch))
        pieces: list[list[int]] = []
        encoded = self._encode([text for _, text in usable]) if usable else []
        for (user, _), ids in zip(usable, encoded, strict=True):
            if len(ids) < 2:  # nothing in it to predict
                self.dropped[SHORT_TEXT] += 1
                continue
            index = self.users.setdefault(user, len(self.users))
            for piece in self._pieces(ids, index):
                pieces.append(piece)
                self.user_of.append(index)
                self.lengths.append(len(piece))
        self._write(pieces)

    def _usable(self, batch: Sequence[Record]) -> Iterator[tuple[str, str]]:
        for user, text in batch:
            if user is None:
                self.dropped[NULL_USER] += 1
            elif text is None:
                self.dropped[NULL_TEXT] += 1
            elif not text.strip():
                self.dropped[EMPTY_TEXT] += 1
            else:
                yield user, text

    def _pieces(self, ids: list[int], user: int) -> Iterator[list[int]]:
        """Yield pieces of 2 to sequence_length ids; the whole text where texts will be joined.

        Neighbouring pieces share one token, the last of one being the first of the next, so each
        token of the text but its first is predicted exactly once. In joined texts, an end token
        that is the begin token too stands between two texts once.
        """
        length = self._sequence_length
        if self._cutting == "join":
            follows = user in self._begun
            self._begun.add(user)
            yield ids[1:] if follows and ids[0] == ids[-1] else ids
            return
        if self._cutting == "truncate":
            if len(ids) > length:
                self.dropped[CUT_TOKENS] += len(ids) - length
            yield ids[:length]
            return
        for start in range(0, len(ids) - 1, length - 1):
            yield ids[start : start + length]

    def _write(self, pieces: list[list[int]]) -> None:
        ids = np.fromiter(chain.from_iterable(pieces), dtype=np.int64)
        outside = ids[(ids < 0) | (ids >= self._vocabulary_size)]
        if outside.size:
            raise ValueError(
                f"encode gave the id {outside[0]}, the vocabulary has {self._vocabulary_size}"
            )
        self._file.write(ids.astype(disk_dtype(self.dtype)).tobytes())
