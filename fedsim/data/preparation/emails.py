"""Steps on e-mail: forwards and quotes, the owner of a mailbox, receivers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedsim.data.preparation.step import Spool, Step
from fedsim.data.sources.records import NULL_OWNERS, Record

_FORWARDING_SUBJECT = re.compile(r"\s*(re\s*:\s*)*fwd?\s*:", re.IGNORECASE)
_FORWARDED = re.compile(
    r"^[ \t>]*(-{2,}[ \t]*forwarded\b.*|begin forwarded message\s*:.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_QUOTE_BEGINS = re.compile(
    r"^[ \t]*(-{2,}[ \t]*original message\b.*|on\b[^\n]*(?:\n[^\n]*)?\bwrote:[ \t]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_QUOTED_LINE = re.compile(r"^[ \t]*>.*(\n|\Z)", re.MULTILINE)


class DropForwards(Step):
    """Drop forwarded e-mails: their text belongs to another person (Chua et al., B.1).

    An e-mail is a forward if its subject starts with FW: or FWD: (with `subject_column`), or if it
    has the line that Lotus Notes, Outlook, Gmail or Apple Mail puts above a forwarded message.
    Streams.
    """

    step: Literal["drop-forwards"] = "drop-forwards"
    subject_column: str | None = None

    def one(self, record: Record) -> Record | str:
        """Keep an e-mail that is not a forward."""
        subject = record.columns.get(self.subject_column or "") or ""
        if _FORWARDING_SUBJECT.match(str(subject)) or _FORWARDED.search(record.said):
            return "forwarded e-mail"
        return record


class StripQuotes(Step):
    """Remove quotes from an e-mail; drop it if no text remains.

    Quotes are all lines after one such as "-----Original Message-----" or "On … wrote:", and every
    line that starts with ">". Streams.
    """

    changes_text: ClassVar[bool] = True

    step: Literal["strip-quotes"] = "strip-quotes"

    def one(self, record: Record) -> Record | str:
        """Keep an e-mail's own words."""
        own = _QUOTE_BEGINS.split(record.text, maxsplit=1)[0]
        own = _QUOTED_LINE.sub("", own)
        if own == record.text:
            return record
        return record._replace(text=own.rstrip()) if own.strip() else "nothing but quotes"


_OWNER = re.compile(r"(?:^|/)(([^/]+)-[a-z]+)/", re.IGNORECASE)


class MailboxOwner(Step):
    """Keep only e-mails that the owner of their mailbox sent (Kandpal et al. 2023, D.1).

    The user column is the sender's address. `column` is the path of the e-mail, such as
    "allen-p/sent/11": a last name, a hyphen, an initial. The owner is the most frequent sender in
    the mailbox whose address contains the last name; ties are broken alphabetically. E-mails of
    other senders are dropped, and mailboxes without such a sender.

    In memory: a count for each pair of a mailbox and a sender with the name, the spool. Looks
    across users: the number of one user's e-mails decides whether another counts as the owner.
    """

    per_user: ClassVar[bool] = False

    step: Literal["mailbox-owner"] = "mailbox-owner"
    column: str = "file_name"

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield the owners' e-mails, all addresses in lower case."""
        with Spool() as spool:
            senders: dict[str, Counter[str]] = {}
            for record in records:
                spool.add(record)
                owner, name = self._owner(record)
                if owner and name in record.user.lower():
                    senders.setdefault(owner, Counter())[record.user.lower()] += 1
            address = {
                owner: min(counts, key=lambda sender: (-counts[sender], sender))
                for owner, counts in senders.items()
            }
            for record in spool.read():
                owner, _ = self._owner(record)
                if not owner:
                    dropped[self.reason("no owner in the path")] += 1
                elif address.get(owner) != record.user.lower():
                    dropped[self.reason("not sent by the mailbox's owner")] += 1
                else:
                    owners = dict.fromkeys(name.lower() for name in record.owners)
                    yield record._replace(user=record.user.lower(), owners=tuple(owners))

    def _owner(self, record: Record) -> tuple[str, str]:
        """Return the mailbox and its owner's last name, both in lower case, or empty strings."""
        match = _OWNER.search(str(record.columns[self.column] or ""))
        return (match[1].lower(), match[2].lower()) if match else ("", "")


class ExpandReceivers(Step):
    """Repeat an e-mail for every receiver, as Chua et al. 2024, App. B.1, do.

    `columns` hold receivers as lists or as comma-separated addresses. A receiver named twice counts
    once; an e-mail without receivers is kept once. Each resulting record has one receiver in the
    first of the columns, and None in the others. Its user is still the sender. Streams.
    """

    step: Literal["expand-receivers"] = "expand-receivers"
    columns: Annotated[tuple[str, ...], Field(min_length=1)] = ("to", "cc", "bcc")

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield a record for each receiver; no record is dropped."""
        first, *others = self.columns
        for record in records:
            named = [address for name in self.columns for address in _listed(record.columns[name])]
            for receiver in dict.fromkeys(named) or (None,):
                receivers = {first: receiver, **dict.fromkeys(others)}
                yield record._replace(columns={**record.columns, **receivers})


class Receivers(Step):
    """Make the receivers of an e-mail its owners, besides its user, the sender. Streams.

    `columns` hold receivers as for `expand-receivers`. The names of the user, of known owners and
    of receivers all become addresses in lower case, as with `user-name` and "email-address". An
    e-mail is dropped if one of them has no address, or if a cell cannot be parsed into addresses
    (`addresses`): it might have an unnamed owner. For the resulting guarantee see Ganesh et al.
    2025, arXiv:2503.03622.
    """

    gives_owners: ClassVar[bool] = True

    step: Literal["receivers"] = "receivers"
    columns: Annotated[tuple[str, ...], Field(min_length=1)] = ("to", "cc", "bcc")

    def one(self, record: Record) -> Record | str:
        """Make an e-mail's receivers its owners."""
        named = [addresses(record.columns[name]) for name in self.columns]
        people = [addresses(name) for name in (record.user, *record.owners)]
        if None in named or not all(people):
            return NULL_OWNERS
        user, *owners = (address for found in (*people, *named) for address in found or ())
        return record._replace(user=user, owners=tuple(dict.fromkeys(owners)))


def addresses(cell: Any) -> list[str] | None:  # noqa: ANN401  (a cell of the source)
    """Return the addresses in a cell, in lower case; None if a part of it cannot be parsed.

    A cell is a list or a string. A string holds addresses separated by commas or semicolons, such
    as "ann@x.org", "Ann Smith <ann@x.org>" or "ann@x.org (Ann)". A name with a comma must be in
    quotes, and an address may be ('ann@x.org'). An address may contain only the ASCII characters
    that need no quotes; with other letters one person could have two addresses.
    """
    if cell is None:
        return []
    result: list[str] = []
    for part in cell if isinstance(cell, (list, tuple)) else [cell]:
        if not isinstance(part, str):  # a null in a list, or NaN: an unnamed person
            return None
        text, place = part.strip().rstrip(",; \t\r\n"), 0
        while place < len(text):
            entry = _ENTRY.match(text, place)
            if entry is None:
                return None
            result += [address.lower() for address in entry.groups() if address]
            place = entry.end()
    return result


_MARK = r"[A-Za-z0-9!#$%&*+/=?^_`{|}~-]"
_LABEL = r"[A-Za-z0-9_-]+"
_ADDRESS = rf"{_MARK}(?:(?:{_MARK}|[.'])*{_MARK})?@{_LABEL}(?:\.{_LABEL})*"
# A name before an address has no character that could belong to or separate another address.
_NAME = r'(?:"[^"\\@\r\n]*"|[^"\\@,;:<>\[\]\r\n])*+'
_BEHIND = r"(?:[ \t]*+\([^()\\@\r\n]*\))?"
_ENTRY = re.compile(
    rf"\s*+(?:'({_ADDRESS})'|({_ADDRESS}){_BEHIND}|{_NAME}<({_ADDRESS})>)\s*(?:[,;]|\Z)"
)


def one_address(name: str) -> str:
    """Return the only address in a name; "" if there is none or more than one."""
    candidates = addresses(name) or ()
    return candidates[0] if len(candidates) == 1 else ""


def _listed(value: Any) -> list[str]:  # noqa: ANN401  (a cell of the source)
    """Return receivers: addresses or, if a part cannot be parsed, its comma-separated words."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    return [name for part in parts for name in addresses(part) or _words(str(part or ""))]


def _words(text: str) -> list[str]:
    return [name.strip().lower() for name in text.split(",") if name.strip()]
