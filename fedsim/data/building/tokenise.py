"""Tokenise a batch of records into pieces of token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.sources.conversations import RefusedError
from fedsim.data.sources.records import Record
from fedsim.data.store import Indices, ranks, runs
from fedsim.data.store.manifest import Cutting, LossOn, disk_dtype, narrowest
from fedsim.errors import ConfigError

Encode = Callable[[Sequence[str]], Sequence[Sequence[int] | npt.NDArray[Any]]]
Ids = npt.NDArray[np.integer[Any]]

SHORT_TEXT = "fewer than 2 tokens"
NO_TOKENS = "texts that became no tokens"
REFUSED = "conversations that the chat template refuses"
LONG_TEXT = "longer than 10,000,000 characters"
CUT_TOKENS = "tokens beyond sequence_length"
UNCOUNTED = "examples without a token that counts"

MOST_CHARACTERS = 10_000_000
"""The longest novels have fewer. A longer text is usually a file without line ends; tokenising it
takes a hundred times its size in memory."""


@dataclass(frozen=True, eq=False)
class TokenisedBatch:
    """The token ids of a batch of records.

    Attributes:
        num_records: number of records read, including dropped ones.
        users: user of each usable text.
        owners: further owners of each usable text; they may include the user.
        pieces: number of pieces of each usable text, int64, at least 1.
        lengths: number of ids of each piece, int64, at least 2 unless texts are `whole`.
        ids: ids of all pieces, concatenated, in the dtype of the store; -1 - id for context tokens.
        begins_as_ends: whether each usable text has equal begin and end tokens; for "join".
        dropped: number of dropped records per reason; `CUT_TOKENS` counts tokens, and `UNCOUNTED`
            counts pieces.
    """

    num_records: int
    users: list[str]
    owners: list[tuple[str, ...]]
    pieces: Indices
    lengths: Indices
    ids: Ids
    begins_as_ends: npt.NDArray[np.bool_]
    dropped: Counter[str]


@dataclass(frozen=True)
class BatchTokeniser:
    """Encode and cut records into pieces.

    Attributes:
        encode: maps texts to ids, -1 - id for context tokens.
        vocabulary_size: every id is below it.
        sequence_length: maximum number of ids of an example, at least 2.
        cutting: "split" a longer text into pieces that overlap in one token, or "truncate" it; or
            "join" a user's texts, to cut them later into examples of nearly equal length.
        loss_on: tokens that count in the loss; "all" if `encode` gives no context tokens. Examples
            without such a token are dropped and counted; with "join" they stay, with a loss of 0.
        whole: whether texts are already examples of this `cutting`, to be kept unchanged.
        drops_refused: whether to drop and count conversations that the chat template refuses;
            otherwise they are errors.
    """

    encode: Encode
    vocabulary_size: int
    sequence_length: int
    cutting: Cutting
    loss_on: LossOn = "all"
    whole: bool = False
    drops_refused: bool = False

    @property
    def joins(self) -> bool:
        """Whether a user's texts are joined before cutting."""
        return self.cutting == "join" and not self.whole

    @property
    def dtype(self) -> str:
        """Name of the narrowest dtype that holds the tokens."""
        return narrowest(self.vocabulary_size, self.loss_on)

    def __call__(self, batch: Sequence[Record]) -> TokenisedBatch:
        """Encode and cut one batch.

        Raises:
            ValueError: `encode` gave an id outside the vocabulary.
            ConfigError: the chat template refuses a conversation; has its row.
        """
        dropped: Counter[str] = Counter()
        usable = [record for record in batch if len(record.text) <= MOST_CHARACTERS]
        if too_long := len(batch) - len(usable):
            dropped[LONG_TEXT] = too_long
        users: list[str] = []
        owners: list[tuple[str, ...]] = []
        texts: list[npt.NDArray[np.int64]] = []
        encoded = self._encoded(usable) if usable else []
        empty_text = [getattr(self.encode, name, None) for name in ("begin", "end")]
        for record, given in zip(usable, encoded, strict=True):
            if given is None:
                dropped[REFUSED] += 1
                continue
            if len(given) == 2 and list(given) == empty_text and not self.whole:
                dropped[NO_TOKENS] += 1
                continue
            if len(given) < 2 and not self.whole:  # no token to predict
                dropped[SHORT_TEXT] += 1
                continue
            users.append(record.user)
            owners.append(record.owners)
            texts.append(np.asarray(given, dtype=np.int64))
        sizes = np.array([len(text) for text in texts], np.int64)
        ids = np.concatenate(texts) if texts else np.zeros(0, np.int64)
        self._check(ids)
        ends = np.cumsum(sizes)
        shared = self._begin_as_they_end(ids[ends - sizes], ids[ends - 1])
        pieces, lengths = np.ones_like(sizes), sizes
        cuts = self.cutting != "join" and not self.whole
        if cuts and len(sizes) and sizes.max() > self.sequence_length:
            pieces, starts, lengths = self._cut(sizes, ends - sizes, dropped)
            ids = ids[runs(starts, lengths)]
        if cuts and self.loss_on != "all":
            ids, pieces, lengths = _counting(ids, pieces, lengths, dropped)
            left = pieces > 0
            users = list(compress(users, left.tolist()))
            owners = list(compress(owners, left.tolist()))
            pieces, shared = pieces[left], shared[left]
        narrow = ids.astype(disk_dtype(self.dtype))
        return TokenisedBatch(len(batch), users, owners, pieces, lengths, narrow, shared, dropped)

    def _encoded(self, usable: Sequence[Record]) -> Sequence[Any]:
        """Return the ids of each text; None if the chat template refuses it."""
        with suppress(RefusedError):
            return self.encode([record.text for record in usable])
        encoded: list[Any] = []  # encode one by one, to find the refused text
        for record in usable:
            try:
                encoded += self.encode([record.text])
            except RefusedError as error:
                if not self.drops_refused:
                    field, reason = error.args
                    raise ConfigError(
                        f"{field}: row {record.row}: {reason}; fix the row, give another "
                        "data.chat_template, or drop such rows with data.drop_refused = true"
                    ) from None
                encoded.append(None)
        return encoded

    def _cut(
        self, sizes: Indices, starts: Indices, dropped: Counter[str]
    ) -> tuple[Indices, Indices, Indices]:
        """Return the number of pieces of each text, and the start and length of each piece.

        The last token of a piece is the first of the next piece. So each token of a text, except
        its first, is predicted exactly once.
        """
        longest = self.sequence_length
        if self.cutting == "truncate":
            dropped[CUT_TOKENS] += int(np.maximum(sizes - longest, 0).sum())
            return np.ones_like(sizes), starts, np.minimum(sizes, longest)
        pieces = -(-(sizes - 1) // (longest - 1))
        within = (longest - 1) * ranks(pieces)
        lengths = np.minimum(np.repeat(sizes, pieces) - within, longest)
        return pieces, np.repeat(starts, pieces) + within, lengths

    def _begin_as_they_end(
        self, first: npt.NDArray[np.int64], last: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Return which texts have the same begin and end token; an equal word does not count.

        An encoder without the attributes `begin` and `end` always adds a begin and an end token.
        """
        begin, end = (getattr(self.encode, name, None) for name in ("begin", "end"))
        both = np.equal(first, last)
        return both if begin is None else both & np.equal(first, begin) & np.bool_(begin == end)

    def _check(self, ids: npt.NDArray[np.int64]) -> None:
        least = 0 if self.loss_on == "all" else -self.vocabulary_size
        outside = ids[(ids < least) | (ids >= self.vocabulary_size)]
        if outside.size:
            raise ValueError(
                f"encode gave the id {outside[0]}, the vocabulary has {self.vocabulary_size}"
            )


def _counting(
    ids: npt.NDArray[np.int64], pieces: Indices, lengths: Indices, dropped: Counter[str]
) -> tuple[npt.NDArray[np.int64], Indices, Indices]:
    """Keep pieces with a predicted token that counts; return ids, pieces per text, and lengths."""
    counted = np.concatenate(([0], np.cumsum(ids >= 0)))
    ends = np.cumsum(lengths)
    wanted = counted[ends] > counted[ends - lengths + 1]  # the first token is not predicted
    dropped[UNCOUNTED] += int((~wanted).sum())
    of_text = np.repeat(np.arange(len(pieces)), pieces)
    left = np.bincount(of_text[wanted], minlength=len(pieces)).astype(np.int64)
    return ids[np.repeat(wanted, lengths)], left, lengths[wanted]
