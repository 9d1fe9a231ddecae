"""The list of all steps, and a chain of steps: run it, fingerprint it, report on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, get_args

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
"""Part of the fingerprint: increase it when the same steps give different records."""

_MARKED = re.compile(rf"([\w-]+) \({ACROSS_USERS}\): ")


class Prepared:
    """The records of a source after all steps, without nulls and empty texts.

    Args:
        records: records of the source.
        steps: steps, in order.
        co_owned: whether texts of one user can have different owners.
        chat: whether texts are conversations.

    Attributes:
        dropped: number of dropped records, per reason; final when the iterator is exhausted.
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
        self._chat = chat
        stream = self._whole(records)
        for step in steps:
            if not step.per_user or (co_owned and step.compares_texts):
                # An entry even at zero: the report lists every step that looks across users.
                self.dropped[step.reason("anything")] += 0
            stream = step.apply(stream, self.dropped)
        self._stream = stream

    def __iter__(self) -> Iterator[Record]:
        return self._stream

    def _whole(self, records: Iterable[RawRecord]) -> Iterator[Record]:
        """Drop nulls and empty texts, counted under the store's reasons."""
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
    """Return the columns that steps read, each with the config field that names it."""
    needed: dict[str, str] = {}
    for number, step in reversed(list(enumerate(steps))):
        for field in (name for name in type(step).model_fields if "column" in name):
            given: str | tuple[str, ...] = getattr(step, field) or ()
            columns = (given,) if isinstance(given, str) else given
            needed |= dict.fromkeys(columns, f"preparation.{number}.{field}")
    return needed


def fingerprint(steps: Sequence[Step]) -> list[object]:
    """Return the settings, files and package version that the steps' result depends on.

    Empty without steps.

    Raises:
        ConfigError: a file does not exist.
    """
    settings = [
        [
            step.model_dump(mode="json"),
            *(_stamp(file, f"preparation.{number}.file") for file in step.reads_files()),
        ]
        for number, step in enumerate(steps)
    ]
    return ["prepared", VERSION, version("publicsuffixlist"), *settings] if settings else []


def assumptions(
    steps: Sequence[Step], dropped: Mapping[str, int], *, co_owned: bool = False
) -> tuple[str, ...]:
    """Return the report's assumptions on steps that looked across users or owners, if any.

    Args:
        steps: steps of the run's config.
        dropped: counts in the store's manifest, which also name the steps of its build.
        co_owned: whether texts of one user can have different owners.
    """
    named = {step.step for step in steps if not step.per_user}
    named |= {found[1] for reason in dropped if (found := _MARKED.match(reason))}
    compared = {name for name, step in STEPS.items() if co_owned and step.compares_texts}
    taken = {step.step for step in steps} | {reason.split(":")[0] for reason in dropped}
    public = (
        "The guarantee is for the prepared data. It holds for the raw data only if the decisions "
        "of these steps count as public."
    )
    sentences = []
    if named:
        sentences.append(
            f"The preparation looked across users ({', '.join(sorted(named))}): one more user "
            f"could change which records of others are in the data. {public}"
        )
    if compared := compared & taken - named:
        sentences.append(
            f"The preparation compared or counted texts that can have different owners "
            f"({', '.join(sorted(compared))}): the content of one owner's text, or its removal, "
            f"could decide which texts of others are in the data. {public}"
        )
    return tuple(sentences)


def check_owners(steps: Sequence[Step]) -> None:
    """Raise `ValueError` if the steps would lose owners, or give one owner two names."""
    for place, step in enumerate(steps):
        if isinstance(step, users.UserWords):
            raise ValueError(
                "user-words: a user's other texts decide how it cuts a text; leave it out"
            )
        if isinstance(step, users.UserName) and step.transform == "first-author":
            raise ValueError(
                "user-name, first-author: ignores other authors, who own the text too; give "
                "data.owners_column a list of all authors"
            )
        for earlier in steps[:place]:
            by_address = (
                isinstance(earlier, users.UserName) and earlier.transform == "email-address"
            )
            renames = isinstance(earlier, (users.MergeUsers, users.UserName))
            loses = isinstance(earlier, emails.ExpandReceivers) or (renames and not by_address)
            if isinstance(step, emails.Receivers) and loses:
                raise ValueError(
                    f"{earlier.step} before receivers: loses receivers, or renames users but not "
                    "receivers, who are the same people; put receivers first"
                )
            if isinstance(step, users.Participants) and not renames:
                raise ValueError(
                    f"{earlier.step} before participants: a person whose texts it drops would not "
                    "own the thread; put participants first"
                )


def _stamp(name: str, field: str) -> tuple[str, int, int, int]:
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(f"data.{field} = {name!r}: no such file")
    return stamp(path)
