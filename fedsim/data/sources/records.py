"""Records between a source and a store, and the reasons to drop one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedsim.data.sources.conversations import contents

NULL_USER = "null user"
NULL_TEXT = "null text"
EMPTY_TEXT = "empty text"
NULL_OWNERS = "owners not all named"

NO_COLUMNS: Mapping[str, Any] = MappingProxyType({})


class RawRecord(NamedTuple):
    """A record of a source, possibly with nulls.

    Attributes:
        user: None for a null.
        text: None for a null.
        columns: see `Record`.
        owners: further owners of the text; None if one of them has no name.
    """

    user: str | None
    text: str | None
    columns: Mapping[str, object] = NO_COLUMNS
    owners: tuple[str, ...] | None = ()


class Record(NamedTuple):
    """A text of a user, with the columns that preparation steps need.

    Attributes:
        user: the user's name.
        text: the text.
        columns: name to unchanged value; None for a null.
        owners: names of further owners of the text; they may include the user.
        chat: whether the text is a conversation, see `fedsim.data.sources.conversations`.
        row: row number in the source, from 1; for messages.
    """

    user: str
    text: str
    columns: Mapping[str, Any] = NO_COLUMNS
    owners: tuple[str, ...] = ()
    chat: bool = False
    row: int = 0

    @property
    def said(self) -> str:
        """The text, or the joined contents of a conversation's messages."""
        return contents(self.text) if self.chat else self.text
