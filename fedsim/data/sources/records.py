"""Records between a source and a store, and the reasons why one is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

NULL_USER = "null user"
NULL_TEXT = "null text"
EMPTY_TEXT = "empty text"

NO_COLUMNS: Mapping[str, Any] = MappingProxyType({})

RawRecord = tuple[str | None, str | None, Mapping[str, object]]
"""User, text and the columns that were asked for, as a source has them, nulls too."""


class Record(NamedTuple):
    """A text of a user, with the columns that the steps of a preparation asked for.

    Attributes:
        user: the user's name.
        text: the text.
        columns: name to value, as the source has it; None where the source has a null.
    """

    user: str
    text: str
    columns: Mapping[str, Any] = NO_COLUMNS
