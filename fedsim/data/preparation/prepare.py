"""The catalogue of steps, and a chain of them: run, counted, fingerprinted, reported."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, get_args

from pydantic import Field

from fedsim.data.preparation.duplicates import ExactDuplicates, NearDuplicates, NearDuplicatesOf
from fedsim.data.preparation.emails import (
    DropForwards,
    ExpandReceivers,
    MailboxOwner,
    Receivers,
    StripQuotes,
)
from fedsim.data.preparation.step import ACROSS_USERS, Step
from fedsim.data.preparation.texts import RepeatedNgrams, TextLength
from fedsim.data.preparation.times import SortByTime, TimeWindow
from fedsim.data.preparation.urls import DropUrls, StripUrls
from fedsim.data.preparation.users import (
    DropUsers,
    MaxExamples,
    MergeUsers,
    MinExamples,
    Participants,
    UserName,
    UserWords,
)
from fedsim.data.sources.records import (
    EMPTY_TEXT,
    NULL_OWNERS,
    NULL_TEXT,
    NULL_USER,
    RawRecord,
    Record,
)
from fedsim.errors import ConfigError

AnyStep = Annotated[
    DropForwards
    | DropUrls
    | DropUsers
    | ExactDuplicates
    | ExpandReceivers
    | MailboxOwner
    | MaxExamples
    | MergeUsers
    | MinExamples
    | NearDuplicates
    | NearDuplicatesOf
    | Participants
    | Receivers
    | RepeatedNgrams
    | SortByTime
    | StripQuotes
    | StripUrls
    | TextLength
    | TimeWindow
    | UserName
    | UserWords,
    Field(discriminator="step"),
]

STEPS: dict[str, type[Step]] = {
    kind.model_fields["step"].default: kind for kind in get_args(get_args(AnyStep)[0])
}


VERSION = 1
"""Part of the fingerprint: raise it when the same steps give other records."""

_MARKED = re.compile(rf"([\w-]+) \({ACROSS_USERS}\): ")


class Prepared:
    """An iterator over (user, text) after all steps, and what they dropped so far.

    Attributes:
        stream: the same records with their owners, to be read in place of the iterator.
        dropped: reason to number of records; final when the iterator is exhausted.
    """

    def __init__(self, records: Iterable[RawRecord], steps: Sequence[Step]) -> None:
        self.dropped: Counter[str] = Counter()
        stream = self._whole(records)
        for step in steps:
            if not step.per_user:  # counted even at zero: that it looked is what the report says
                self.dropped[step.reason("anything")] += 0
            stream = step.apply(stream, self.dropped)
        self.stream = stream

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return self

    def __next__(self) -> tuple[str, str]:
        record = next(self.stream)
        return record.user, record.text

    def _whole(self, records: Iterable[RawRecord]) -> Iterator[Record]:
        """Drop nulls and empty texts, by the reasons that the store counts them under."""
        for user, text, columns, owners in records:
            if user is None:
                self.dropped[NULL_USER] += 1
            elif text is None:
                self.dropped[NULL_TEXT] += 1
            elif not text.strip():
                self.dropped[EMPTY_TEXT] += 1
            elif owners is None:
                self.dropped[NULL_OWNERS] += 1
            else:
                yield Record(user, text, columns, owners)


def needed_columns(steps: Sequence[Step]) -> dict[str, str]:
    """Return the columns that steps read, each with the name of the field that asks for it."""
    return {
        column: f"preparation.{number}.{step.step}"
        for number, step in reversed(list(enumerate(steps)))
        for column in step.needs_columns()
    }


def fingerprint(steps: Sequence[Step]) -> list[object]:
    """Return what the steps' outcome depends on: their settings, and the files that they read.

    Without steps it is empty: a source is then what it always was.

    Raises:
        ConfigError: a file is not there.
    """
    settings = [[step.model_dump(mode="json"), *map(_stamp, step.reads_files())] for step in steps]
    return ["prepared", VERSION, *settings] if settings else []


def assumptions(steps: Sequence[Step], dropped: Mapping[str, int]) -> tuple[str, ...]:
    """Return the report's assumptions on steps that looked across users; () if none did.

    Args:
        steps: of the run's config.
        dropped: of the store's manifest, which knows of steps that an earlier build took.
    """
    named = {step.step for step in steps if not step.per_user}
    named |= {found[1] for reason in dropped if (found := _MARKED.match(reason))}
    if not named:
        return ()
    return (
        f"The preparation looked across users ({', '.join(sorted(named))}): one user more could "
        "change which records of others are in the data. The guarantee is for the prepared data, "
        "and reaches the raw data only if what these steps decided counts as public.",
    )


def _stamp(name: str) -> tuple[str, int, int]:
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(f"data.preparation: file = {name!r}: no such file")
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns
