"""Steps on users: names, aliases, numbers of records, and participants of threads."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedsim.data.preparation.emails import one_address
from fedsim.data.preparation.step import Spool, Step
from fedsim.data.preparation.urls import base_domain
from fedsim.data.sources.names import bare, one_spelling, user_name
from fedsim.data.sources.records import Record
from fedsim.errors import about
from fedsim.utils.json_text import parse_json


def _first_author(names: str) -> str:
    """Return the first of "A. Author, B. Author and C. Author", without an affiliation."""
    first = names.replace(" and ", ",").split(",")[0].split("(")[0]
    return " ".join(first.split())


def one_form(name: str) -> str:
    """Return the common form of names that look alike; the address if the name has one address."""
    name = one_spelling(name)
    is_named = "@" in name and name[-1] in ">)'"  # a bare address is already in its common form
    return (one_address(name) if is_named else "") or name


TRANSFORMS: dict[str, Callable[[str], str]] = {
    "base-domain": base_domain,
    "email-address": one_address,
    "first-author": _first_author,
    "lower-case": str.lower,
    "one-spelling": one_form,
}


class UserName(Step):
    """Transform the names of users and owners. Streams.

    "base-domain" takes the domain of a URL, by the public suffix list
    (`fedsim.data.preparation.urls`). "email-address" takes the address of "Name <address>".
    "first-author" takes the first of a list of authors, for texts that one person owns.
    "lower-case" makes lower case. "one-spelling" unifies names that differ only in case, Unicode
    form, spaces, dashes, a final ".0" or the form of an e-mail address.
    """

    step: Literal["user-name"] = "user-name"
    transform: Literal["base-domain", "email-address", "first-author", "lower-case", "one-spelling"]

    def one(self, record: Record) -> Record | str:
        """Keep a record under its new names; drop it if a new name is empty."""
        user, *owners = map(TRANSFORMS[self.transform], (record.user, *record.owners))
        if not all((user, *owners)):
            return f"no {self.transform}"
        return record._replace(user=user, owners=tuple(dict.fromkeys(owners)))


class DropUsers(Step):
    """Drop users with one of these strings in their name, ignoring case. Streams.

    Kandpal et al. 2023, D.1, remove bots and moderators this way.
    """

    step: Literal["drop-users"] = "drop-users"
    containing: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]

    def one(self, record: Record) -> Record | str:
        """Keep a record unless its user's name contains one of the strings."""
        name = record.user.lower()
        named = any(part.lower() in name for part in self.containing)
        return "name of the user" if named else record


class MergeUsers(Step):
    """Rename users and owners by a file of aliases, so that each person is one user.

    `file` is a JSON object {alias: person} or a CSV with the columns alias and person. Other users
    keep their name. Spaces around a name and invisible characters are removed. Streams; in memory:
    the file.
    """

    step: Literal["merge-users"] = "merge-users"
    file: str

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield every record under the person's name; no record is dropped."""
        person_of = self._aliases()
        for record in records:
            user, *owners = (person_of.get(name, name) for name in (record.user, *record.owners))
            yield record._replace(user=user, owners=tuple(dict.fromkeys(owners)))

    def _aliases(self) -> dict[str, str]:
        refused = (OSError, ValueError, csv.Error)
        with about(f"data.preparation: merge-users: file = {self.file!r}: ", refused):
            aliases: dict[str, str] = {}
            # Messages give the number, not the name: logs must not contain users' names.
            for number, (alias, person) in enumerate(_pairs(Path(self.file).expanduser()), start=1):
                if not alias or not person:
                    raise ValueError(f"alias number {number}: wanted: two names")
                if aliases.setdefault(alias, person) != person:
                    raise ValueError(f"alias number {number}: was already an alias of another")
            for number, person in enumerate(aliases.values(), start=1):
                # Otherwise the order of the file would decide the person's name.
                if aliases.get(person, person) != person:
                    raise ValueError(f"alias number {number}: its person is an alias of another")
            return aliases


def _pairs(path: Path) -> list[tuple[str, str]]:
    """Return pairs of alias and person, cleaned like the names of a source."""
    if path.suffix == ".json":
        pairs = parse_json(path.read_bytes())
        if not isinstance(pairs, dict):
            raise ValueError("wanted: a JSON object of alias to person")
        pairs = pairs.items()
    else:
        with path.open(encoding="utf-8-sig", newline="") as file:
            heads, *rows = [*filter(None, csv.reader(file, strict=True))] or [[]]
        if sorted(heads) != ["alias", "person"] or any(len(row) != 2 for row in rows):
            raise ValueError("wanted: a CSV with the two columns alias and person, or a .json")
        pairs = [row if heads[0] == "alias" else row[::-1] for row in rows]
    return [(bare(str(alias or "")), bare(str(person or ""))) for alias, person in pairs]


Positive = Annotated[int, Field(ge=1)]


class MinExamples(Step):
    """Drop users with fewer than `count` records. In memory: a count per user, the spool."""

    compares_texts: ClassVar[bool] = True

    step: Literal["min-examples"] = "min-examples"
    count: Positive

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the records of users with at least `count` records."""
        reason = self.reason(f"user has fewer than {self.count}")
        yield from _of_sizes(records, lambda size: size >= self.count, dropped, reason)


class MaxExamples(Step):
    """Keep a user's first `count` records, or drop users with more. In memory: a count per user."""

    compares_texts: ClassVar[bool] = True

    step: Literal["max-examples"] = "max-examples"
    count: Positive
    then: Literal["keep-first", "drop-user"] = "keep-first"

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the first records of each user, or all records of users with at most `count`."""
        if self.then == "keep-first":
            yield from self._first(records, dropped)
            return
        reason = self.reason(f"user has more than {self.count}")
        yield from _of_sizes(records, lambda size: size <= self.count, dropped, reason)

    def _first(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        seen: Counter[str] = Counter()
        for record in records:
            seen[record.user] += 1
            if seen[record.user] <= self.count:
                yield record
            else:
                dropped[self.reason(f"beyond a user's first {self.count}")] += 1


class Participants(Step):
    """Make every user with a text in a thread an owner of all texts of the thread.

    `column` names the thread; a text without a thread has only its user as owner. A person without
    a text at this step is not an owner, so put it before every step that drops texts. In memory: a
    set of users for each thread, the spool. The guarantee then treats the writers of each thread as
    public (Ganesh et al. 2025, arXiv:2503.03622).
    """

    gives_owners: ClassVar[bool] = True

    step: Literal["participants"] = "participants"
    column: str

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield each text with the thread's users as owners; no record is dropped."""
        with Spool() as spool:
            writers: dict[str | None, dict[str, None]] = {}
            for record in records:
                spool.add(record)
                writers.setdefault(self._thread(record), {})[record.user] = None
            for record in spool.read():
                thread = self._thread(record)
                others = () if thread is None else writers[thread]
                yield record._replace(owners=tuple(dict.fromkeys([*record.owners, *others])))

    def _thread(self, record: Record) -> str | None:
        field = f"data.preparation: participants: column = {self.column!r}"
        return user_name(record.columns[self.column], field)


class UserWords(Step):
    """Cut every user to exactly `count` words, and drop users with fewer.

    McMahan et al. 2018, App. B, prepare Reddit this way, with 1600 words. The text that reaches the
    count is cut, with its words joined by single spaces. In memory: a count per user, the spool.
    """

    changes_text: ClassVar[bool] = True
    compares_texts: ClassVar[bool] = True

    step: Literal["user-words"] = "user-words"
    count: Positive

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the first `count` words of each user with that many."""
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


def _of_sizes(
    records: Iterator[Record], fits: Callable[[int], bool], dropped: Counter[str], reason: str
) -> Iterator[Record]:
    """Yield the records of users whose number of records fits; count the others as dropped."""
    with Spool() as spool:
        sizes: Counter[str] = Counter()
        for record in records:
            sizes[record.user] += 1
            spool.add(record)
        for record in spool.read():
            if fits(sizes[record.user]):
                yield record
            else:
                dropped[reason] += 1
