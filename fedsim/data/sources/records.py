"""Records between a source and a store, and the reasons why one is dropped."""

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
    """A record as a source has it, nulls too.

    Attributes:
        user: None for a null.
        text: None for a null.
        columns: as of `Record`.
        owners: who owns the text beside its user; None where one of them has no name.
    """

    user: str | None
    text: str | None
    columns: Mapping[str, object] = NO_COLUMNS
    owners: tuple[str, ...] | None = ()


class Record(NamedTuple):
    """A text of a user, with the columns that the steps of a preparation asked for.

    Attributes:
        user: the user's name.
        text: the text.
        columns: name to value, as the source has it; None where the source has a null.
        owners: names of who owns the text beside its user; the user may be among them.
        chat: whether the text is a conversation, as of `fedsim.data.sources.conversations`.
        row: its number in the source, from 1; for messages.
    """

    user: str
    text: str
    columns: Mapping[str, Any] = NO_COLUMNS
    owners: tuple[str, ...] = ()
    chat: bool = False
    row: int = 0

    @property
    def said(self) -> str:
        """The text, or what the messages of a conversation say, one behind the other."""
        return contents(self.text) if self.chat else self.text
