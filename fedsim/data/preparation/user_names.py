"""Steps on whose a text is: a name made of a column, and users left out by their name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from email.utils import parseaddr
from typing import Annotated, Literal

from pydantic import Field

from fedsim.data.preparation.domains import base_domain
from fedsim.data.preparation.step import Step
from fedsim.data.records import Record


def _address(name: str) -> str:
    address = parseaddr(name)[1].lower()
    return address if "@" in address else ""


def _first_author(names: str) -> str:
    """Return the first of "A. Author, B. Author and C. Author", without an affiliation."""
    first = names.replace(" and ", ",").split(",")[0].split("(")[0]
    return " ".join(first.split())


TRANSFORMS: dict[str, Callable[[str], str]] = {
    "base-domain": base_domain,
    "email-address": _address,
    "first-author": _first_author,
    "lower-case": str.lower,
}


class UserName(Step):
    """Make the user's name of what the user column holds. Streams.

    "base-domain" of a URL, by the public suffix list (`fedsim.data.preparation.domains`);
    "email-address" of "Name <address>"; "first-author" of a list of authors; "lower-case".
    """

    step: Literal["user-name"] = "user-name"
    transform: Literal["base-domain", "email-address", "first-author", "lower-case"]

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield each record under its new name; drop those that give none."""
        transform = TRANSFORMS[self.transform]
        for record in records:
            name = transform(record.user)
            if name:
                yield record._replace(user=name)
            else:
                dropped[self.reason(f"no {self.transform}")] += 1


class DropUsers(Step):
    """Drop users with one of these strings in their name, upper and lower case alike. Streams.

    Kandpal et al. 2023, D.1, leave out so whom they take for a machine or a moderator.
    """

    step: Literal["drop-users"] = "drop-users"
    containing: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the records of everybody else."""
        parts = [part.lower() for part in self.containing]
        for record in records:
            name = record.user.lower()
            if any(part in name for part in parts):
                dropped[self.reason("name of the user")] += 1
            else:
                yield record
