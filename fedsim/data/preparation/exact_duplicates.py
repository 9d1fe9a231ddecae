"""A step that keeps one copy of each text of a user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import Literal

from fedsim.data.preparation.step import Step
from fedsim.data.records import Record


class ExactDuplicates(Step):
    """Drop a text that the same user has had before, to the character.

    Streams. In memory: a 128-bit digest a distinct (user, text), about 110 bytes each. Two users
    with the same text both keep it: what one user has must not decide what another trains on.
    """

    step: Literal["exact-duplicates"] = "exact-duplicates"

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the first record of each text of a user."""
        seen: set[bytes] = set()
        for record in records:
            # The user's length in front: ("ab", "c") and ("a", "bc") are not the same.
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
