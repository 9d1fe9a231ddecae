"""A step that keeps, of a dump of mailboxes, what each owner sent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from fedsim.data.preparation.spool import Spool
from fedsim.data.preparation.step import Step
from fedsim.data.records import Record

_OWNER = re.compile(r"(?:^|/)(([^/]+)-[a-z]+)/", re.IGNORECASE)


class MailboxOwner(Step):
    """Keep the e-mails in a mailbox that its owner sent (Kandpal et al. 2023, D.1).

    The user column is the sender's address and `column` the path of the e-mail, such as
    "allen-p/sent/11": a last name, a hyphen, an initial. The owner's address is, of the senders
    with the last name in their address, the most frequent in the mailbox; of equals, the first in
    the alphabet. What others sent is dropped, and so are mailboxes without such a sender.

    In memory: a count for each pair of a mailbox and a sender with the name, the spool. Looks
    across users: how often one sends decides whether another is taken for the owner.
    """

    step: Literal["mailbox-owner"] = "mailbox-owner"
    column: str = "file_name"

    @property
    def per_user(self) -> bool:
        """Senders of one mailbox compete, so no."""
        return False

    def needs_columns(self) -> tuple[str, ...]:
        """Return the path's column."""
        return (self.column,)

    def apply(self, records: Iterator[Record], dropped: Counter[str]) -> Iterator[Record]:
        """Yield what owners sent, the address in lower case as the user."""
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
                    yield record._replace(user=record.user.lower())

    def _owner(self, record: Record) -> tuple[str, str]:
        """Return the mailbox and its owner's last name, both in lower case, or empty strings."""
        found = _OWNER.search(str(record.columns[self.column] or ""))
        return (found[1].lower(), found[2].lower()) if found else ("", "")
