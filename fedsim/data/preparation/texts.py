"""Steps that drop texts: by length, by repetition, and as duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedsim.data.preparation.step import Step
from fedsim.data.sources.records import Record


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
