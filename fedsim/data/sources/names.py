"""Names of users and owners, as a source's cells hold them.

A name is the unit of privacy, so it is read with care: one person never appears under two names
because a column's type changed ("7" and "7.0"), for the spaces around it or for characters that
nobody sees; and two people never have one ("007" and "7").
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from unicodedata import category, normalize

from fedsim.errors import ConfigError

SPEAKER = "speaker"
"""The user column of the built-in plays, and the default of others."""

_PRINTED = re.compile(r"[\w.]*[\[{(].*[\]})]|['\"].*['\"]", re.DOTALL)
"""A list as a program prints it, or a name in quotes."""

MISSING = {
    *("", "nan", "none", "null", "nil", "n/a", "#n/a", "<na>", "nat", "-", "--", "?"),
    *("undefined", "unknown", "[deleted]", "[removed]"),
}
"""What programs write where there is no value, in lower case."""

_UNSEEN = {*range(0xFE00, 0xFE10), 0x034F, 0x115F, 0x1160, 0x3164, 0xFFA0}
"""Variation selectors, joiners and fillers: invisible, though Unicode calls them no format."""

_MARKS = {
    **dict.fromkeys((*range(0x2010, 0x2016), 0x2212), "-"),
    **dict.fromkeys((0x2018, 0x2019, 0x02BC), "'"),
}
_FLOAT = re.compile(r"([+-]?\d+)\.0+")


class _Visible(dict[int, int | None]):
    """A table of `str.translate` without invisible characters, filled as they are met."""

    def __missing__(self, code: int) -> int | None:
        unseen = code in _UNSEEN or category(chr(code)) == "Cf"
        return self.setdefault(code, None if unseen else code)


_VISIBLE = _Visible()


def bare(name: str) -> str:
    """Return a name without the spaces around it and without invisible characters.

    Phones put marks of the writing direction around names; copying brings zero-width spaces.
    """
    return (name if name.isascii() else name.translate(_VISIBLE)).strip()


def one_spelling(name: str) -> str:
    """Return the one form of names that look alike.

    Case, Unicode form, spaces, kinds of dashes and apostrophes, and a final ".0" make no
    difference.
    """
    if not name.isascii():
        name = normalize("NFKC", bare(name)).translate(_MARKS)
    name = " ".join(name.casefold().split())
    return number[1] if (number := _FLOAT.fullmatch(name)) else name


def user_name(value: object, field: str) -> str | None:
    """Return a name as `bare` leaves it, or None of an empty one.

    Whole numbers are written as integers, whatever their type is.

    Args:
        value: a cell.
        field: the key and its column, for messages, which never say what a cell holds.

    Raises:
        ConfigError: neither a string nor a number, or a float that may have lost digits.
    """
    if value is None or value != value:  # noqa: PLR0124  (NaN)
        return None
    if isinstance(value, float) and abs(value) >= 2.0**53:
        raise ConfigError(
            f"{field}: holds a float that can have lost digits: other users may have become the "
            "same; give strings or integers (pandas makes floats of integers where one is missing)"
        )
    if isinstance(value, (float, Decimal)):
        value = int(value) if value == int(value) else float(value)
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        kind = type(value).__name__
        raise ConfigError(f"{field}: holds {kind} values; wanted: strings or numbers")
    return bare(str(value)) or None


def owner_names(value: object, field: str, separator: str | None) -> tuple[str, ...] | None:
    """Return the owners that a cell names, each once, in their order.

    Args:
        value: a list, or with a separator a string.
        field: as of `user_name`.
        separator: what stands between names in a string.

    Returns:
        None for a null, and for a list with a null or an empty name in it: an owner is unknown.
        () for an empty list: nobody owns the text but its user.

    Raises:
        ConfigError: neither a list nor, with a separator, a string; a string that is a list as a
            program prints it, whose marks would become parts of names; or what `user_name` refuses.
    """
    if value is None or value != value:  # noqa: PLR0124  (NaN)
        return None
    if isinstance(value, str) and separator is not None:
        parts: Sequence[str] = value.split(separator) if value.strip() else []
        if any(_PRINTED.fullmatch(part.strip()) for part in (value, *parts)):
            raise ConfigError(
                f"{field}: holds strings in brackets or names in quotes, as a program prints a "
                f"list; wanted: lists of names, or names alone with {separator!r} between them"
            )
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        raise ConfigError(
            f"{field}: holds {type(value).__name__} values; wanted: lists of names, or strings "
            "and what stands between names in them, as data.owners_separator"
        )
    names = [user_name(part, field) for part in parts]
    return None if None in names else tuple(dict.fromkeys(name for name in names if name))
