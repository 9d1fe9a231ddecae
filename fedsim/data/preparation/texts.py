"""Steps that drop texts: by length, by repetition, as exact and near duplicates."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from fedsim.data.preparation.step import Step
from fedsim.data.sources.records import Record
from fedsim.errors import about


class TextLength(Step):
    """Drop texts that are shorter than `minimum` or longer than `maximum`. Streams.

    Words are separated by white space.
    """

    step: Literal["text-length"] = "text-length"
    unit: Literal["characters", "words"] = "characters"
    minimum: Annotated[int, Field(ge=1)] | None = None
    maximum: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _a_range(self) -> TextLength:
        if self.minimum is None and self.maximum is None:
            raise ValueError("give minimum, maximum or both")
        if self.minimum and self.maximum and self.minimum > self.maximum:
            raise ValueError(f"minimum = {self.minimum} is above maximum = {self.maximum}")
        return self

    def one(self, record: Record) -> Record | str:
        """Keep a text with a length in the range, including both ends."""
        size = len(record.said) if self.unit == "characters" else len(record.said.split())
        if self.minimum is not None and size < self.minimum:
            return f"fewer than {self.minimum} {self.unit}"
        if self.maximum is not None and size > self.maximum:
            return f"more than {self.maximum} {self.unit}"
        return record


class RepeatedNgrams(Step):
    """Drop a text in which a sequence of `words` words occurs twice.

    Chua et al. 2024, App. B.1, keep the e-mails in which no 20-gram occurs more than once. Words
    are separated by white space; a text of at most `words` words is kept. Streams.
    """

    step: Literal["repeated-ngrams"] = "repeated-ngrams"
    words: Annotated[int, Field(ge=1)] = 20

    def one(self, record: Record) -> Record | str:
        """Keep a text in which every n-gram is unique."""
        words = record.said.split()
        count = max(0, len(words) - self.words + 1)
        ngrams = {tuple(words[start : start + self.words]) for start in range(count)}
        return f"a {self.words}-gram stands twice" if len(ngrams) < count else record


class ExactDuplicates(Step):
    """Drop a text that is identical to an earlier text of the same user.

    Streams. In memory: a 128-bit digest for each distinct (user, text), about 110 bytes each. Two
    users with the same text both keep it: one user's data must not decide another's.
    """

    compares_texts: ClassVar[bool] = True

    step: Literal["exact-duplicates"] = "exact-duplicates"

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the first record of each text of a user."""
        seen: set[bytes] = set()
        for record in records:
            # The length of the name tells ("ab", "c") from ("a", "bc").
            user = _bytes(record.user)
            head = len(user).to_bytes(8, "little") + user
            digest = blake2b(head + _bytes(record.text), digest_size=16).digest()
            if digest in seen:
                dropped[self.reason("same text of the same user")] += 1
            else:
                seen.add(digest)
                yield record


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # JSON can hold half a pair


class NearDuplicates(Step):
    """Drop a text that is similar to an earlier one, of the same user or of any user.

    Two texts are near-duplicates if the estimated Jaccard similarity of their sets of shingles is
    at least `threshold`. A shingle is `shingle_words` consecutive words in lower case; a shorter
    text is one shingle. The estimate's standard deviation is at most 1 / (2 √num_permutations).

    In memory: about 6 kB per kept text. `within = "data"` looks across users: one user's texts then
    decide whether another user's record is kept.
    """

    compares_texts: ClassVar[bool] = True

    step: Literal["near-duplicates"] = "near-duplicates"
    within: Literal["user", "data"] = "user"
    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    shingle_words: Annotated[int, Field(ge=1)] = 5
    num_permutations: Annotated[int, Field(ge=16)] = 128

    @property
    def per_user(self) -> bool:
        """Whether only the user's own texts are compared."""
        return self.within == "user"

    def rests_on(self) -> tuple[str, ...]:
        """Return the package that estimates similarity."""
        return ("datasketch",)

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the first of each group of near-duplicates."""
        sketch = importlib.import_module("datasketch")  # takes almost a second
        count = self.num_permutations
        # Candidates are checked below: false ones are harmless, missed ones must be rare.
        with about(f"data.preparation: {self.step}: num_permutations = {count}: give more: "):
            buckets = sketch.MinHashLSH(self.threshold, count, weights=(0.1, 0.9))
        empty = sketch.MinHash(num_perm=count)
        kept: list[tuple[str | None, npt.NDArray[np.uint32]]] = []
        for record in records:
            whose = record.user if self.per_user else None
            signature = empty.copy()
            signature.update_batch(self._shingles(record.said))
            values = signature.hashvalues.astype(np.uint32)
            candidates = (kept[number] for number in buckets.query(signature))
            if any(
                other == whose and float(np.mean(earlier == values)) >= self.threshold
                for other, earlier in candidates
            ):
                dropped[self.reason("close to an earlier text")] += 1
            else:
                buckets.insert(len(kept), signature, check_duplication=False)
                kept.append((whose, values))
                yield record

    def _shingles(self, text: str) -> list[bytes]:
        words = text.lower().split()
        count = max(1, len(words) - self.shingle_words + 1)
        starts = range(count)
        shingles = {" ".join(words[start : start + self.shingle_words]) for start in starts}
        return [_bytes(shingle) for shingle in shingles]
