"""Steps on how much a user has: at least, at most, or exactly so many words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from fedsim.data.preparation.spool import Spool
from fedsim.data.preparation.step import Step
from fedsim.data.records import Record

Positive = Annotated[int, Field(ge=1)]


class MinExamples(Step):
    """Drop the users with fewer than `count` records. In memory: a count a user, the spool."""

    step: Literal["min-examples"] = "min-examples"
    count: Positive

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the records of the users who have enough of them."""
        with Spool() as spool:
            sizes = _counted(records, spool)
            for record in spool.read():
                if sizes[record.user] >= self.count:
                    yield record
                else:
                    dropped[self.reason(f"user has fewer than {self.count}")] += 1


class MaxExamples(Step):
    """Keep a user's first `count` records, or drop users with more. In memory: a count a user."""

    step: Literal["max-examples"] = "max-examples"
    count: Positive
    then: Literal["keep-first", "drop-user"] = "keep-first"

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the records of the users who have few enough, or the first of each user."""
        if self.then == "keep-first":
            yield from self._first(records, dropped)
            return
        with Spool() as spool:
            sizes = _counted(records, spool)
            for record in spool.read():
                if sizes[record.user] <= self.count:
                    yield record
                else:
                    dropped[self.reason(f"user has more than {self.count}")] += 1

    def _first(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        seen: Counter[str] = Counter()
        for record in records:
            seen[record.user] += 1
            if seen[record.user] <= self.count:
                yield record
            else:
                dropped[self.reason(f"beyond a user's first {self.count}")] += 1


class UserWords(Step):
    """Give every user exactly `count` words: drop who has fewer, cut who has more.

    As McMahan et al. 2018, App. B, prepare Reddit, with 1600. The text in which a user's count is
    reached is cut there, its words joined by single spaces. In memory: a count a user, the spool.
    """

    step: Literal["user-words"] = "user-words"
    count: Positive

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the first `count` words of each user who has them."""
        with Spool() as spool:
            totals: Counter[str] = Counter()
            for record in records:
                totals[record.user] += len(record.text.split())
                spool.add(record)
            left = {user: self.count for user, total in totals.items() if total >= self.count}
            for record in spool.read():
                if record.user not in left:
                    dropped[self.reason(f"user has fewer than {self.count} words")] += 1
                elif left[record.user] == 0:
                    dropped[self.reason(f"beyond a user's first {self.count} words")] += 1
                else:
                    yield self._cut(record, left)

    @staticmethod
    def _cut(record: Record, left: dict[str, int]) -> Record:
        words = record.text.split()
        room = left[record.user]
        left[record.user] = max(0, room - len(words))
        return record if len(words) <= room else record._replace(text=" ".join(words[:room]))


def _counted(records: Iterator[Record], spool: Spool) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for record in records:
        sizes[record.user] += 1
        spool.add(record)
    return sizes
