"""The catalogue of steps, and a chain of them: run, counted, fingerprinted, reported."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field

from fedsim.data.preparation import emails, texts, times, users
from fedsim.data.preparation.step import ACROSS_USERS, Step
from fedsim.data.sources.records import (
    EMPTY_TEXT,
    NULL_OWNERS,
    NULL_TEXT,
    NULL_USER,
    RawRecord,
    Record,
)
from fedsim.errors import ConfigError
from fedsim.utils.files import stamp

AnyStep = Annotated[
    emails.DropForwards
    | emails.ExpandReceivers
    | emails.MailboxOwner
    | emails.Receivers
    | emails.StripQuotes
    | texts.ExactDuplicates
    | texts.NearDuplicates
    | texts.RepeatedNgrams
    | texts.TextLength
    | times.SortByTime
    | times.TimeWindow
    | users.DropUsers
    | users.MaxExamples
    | users.MergeUsers
    | users.MinExamples
    | users.Participants
    | users.UserName
    | users.UserWords,
    Field(discriminator="step"),
]

STEPS: dict[str, type[Step]] = {
    kind.model_fields["step"].default: kind for kind in get_args(get_args(AnyStep)[0])
}


VERSION = 4
"""Part of the fingerprint: raise it when the same steps give other records."""

_MARKED = re.compile(rf"([\w-]+) \({ACROSS_USERS}\): ")


class Prepared:
    """An iterator over (user, text) after all steps, with the owners where texts have several.

    Args:
        records: of the source.
        steps: in their order.
        co_owned: whether one text of a user can have other owners than the next.
        chat: whether texts are conversations.

    Attributes:
        stream: the records of the iterator, with all that they hold.
        dropped: reason to number of records; final when the iterator is exhausted.
    """

    def __init__(
        self,
        records: Iterable[RawRecord],
        steps: Sequence[Step],
        *,
        co_owned: bool = False,
        chat: bool = False,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self._chat, self._co_owned = chat, co_owned
        stream = self._whole(records)
        for step in steps:
            if not step.per_user or (co_owned and step.compares_texts):
                # Counted even at zero: that it looked is what the report says.
                self.dropped[step.reason("anything")] += 0
            stream = step.apply(stream, self.dropped)
        self.stream = stream

    def __iter__(self) -> Iterator[Any]:
        fields = 3 if self._co_owned else 2
        return ((record.user, record.text, record.owners)[:fields] for record in self.stream)

    def _whole(self, records: Iterable[RawRecord]) -> Iterator[Record]:
        """Drop nulls and empty texts, by the reasons that the store counts them under."""
        for row, (user, text, columns, owners) in enumerate(records, start=1):
            if user is None:
                self.dropped[NULL_USER] += 1
            elif text is None:
                self.dropped[NULL_TEXT] += 1
            elif not text.strip():
                self.dropped[EMPTY_TEXT] += 1
            elif owners is None:
                self.dropped[NULL_OWNERS] += 1
            else:
                yield Record(user, text, columns, owners, self._chat, row)


def needed_columns(steps: Sequence[Step]) -> dict[str, str]:
    """Return the columns that steps read, each with the name of the field that asks for it."""
    return {
        column: f"preparation.{number}.{step.column_field}"
        for number, step in reversed(list(enumerate(steps)))
        for column in step.needs_columns()
    }


def fingerprint(steps: Sequence[Step]) -> list[object]:
    """Return what the steps' outcome depends on: settings, the files read, packages' versions.

    Without steps it is empty: a source is then what it always was.

    Raises:
        ConfigError: a file is not there.
    """
    settings = [
        [
            step.model_dump(mode="json"),
            *(_stamp(file, f"preparation.{number}.file") for file in step.reads_files()),
            *(f"{name} {version(name)}" for name in step.rests_on()),
        ]
        for number, step in enumerate(steps)
    ]
    return ["prepared", VERSION, *settings] if settings else []


def assumptions(
    steps: Sequence[Step], dropped: Mapping[str, int], *, co_owned: bool = False
) -> tuple[str, ...]:
    """Return the report's assumptions on steps that looked across users or owners; () if none did.

    Args:
        steps: of the run's config.
        dropped: of the store's manifest, which knows of steps that an earlier build took.
        co_owned: whether one text of a user can have other owners than the next.
    """
    named = {step.step for step in steps if not step.per_user}
    named |= {found[1] for reason in dropped if (found := _MARKED.match(reason))}
    compared = {name for name, step in STEPS.items() if co_owned and step.compares_texts}
    taken = {step.step for step in steps} | {reason.split(":")[0] for reason in dropped}
    public = (
        "The guarantee is for the prepared data, and reaches the raw data only if what these steps "
        "decided counts as public."
    )
    said = []
    if named:
        said.append(
            f"The preparation looked across users ({', '.join(sorted(named))}): one user more "
            f"could change which records of others are in the data. {public}"
        )
    if compared := compared & taken - named:
        said.append(
            f"The preparation compared or counted texts that can have different owners "
            f"({', '.join(sorted(compared))}): what one owner's text says, or that it is empty or "
            f"another step drops it, could decide which texts of others are in the data. {public}"
        )
    return tuple(said)


def check_owners(steps: Sequence[Step]) -> None:
    """Raise `ValueError` where the order of steps would lose owners, or give one two names."""
    for place, step in enumerate(steps):
        if isinstance(step, users.UserWords):
            raise ValueError("user-words: cuts a text by a user's other texts; leave it out")
        if isinstance(step, users.UserName) and step.transform == "first-author":
            raise ValueError(
                "user-name, first-author: leaves out other authors, who own the text too; give "
                "data.owners_column a list of all"
            )
        for earlier in steps[:place]:
            by_address = (
                isinstance(earlier, users.UserName) and earlier.transform == "email-address"
            )
            renames = isinstance(earlier, (users.MergeUsers, users.UserName))
            loses = isinstance(earlier, emails.ExpandReceivers) or (renames and not by_address)
            if isinstance(step, emails.Receivers) and loses:
                raise ValueError(
                    f"{earlier.step} before receivers: loses receivers, or renames users and not "
                    "the receivers, who are the same people; put receivers first"
                )
            if isinstance(step, users.Participants) and not renames:
                raise ValueError(
                    f"{earlier.step} before participants: whoever's texts it drops would own "
                    "nothing of the thread; put participants first"
                )


def _stamp(name: str, field: str) -> tuple[str, int, int, int]:
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(f"data.{field} = {name!r}: no such file")
    return stamp(path)
