"""Names of users and owners, read from the cells of a source.

A name is the unit of privacy. So a column's type ("7" and "7.0"), spaces around a name and
invisible characters must not give one person two names. And two people must not get one name ("007"
and "7").
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
"""Strings that programs write for a missing value, in lower case."""

_UNSEEN = {*range(0xFE00, 0xFE10), 0x034F, 0x115F, 0x1160, 0x3164, 0xFFA0}
"""Variation selectors, joiners and fillers: invisible, but not in Unicode's category Cf."""

_MARKS = {
    **dict.fromkeys((*range(0x2010, 0x2016), 0x2212), "-"),
    **dict.fromkeys((0x2018, 0x2019, 0x02BC), "'"),
}
_FLOAT = re.compile(r"([+-]?\d+)\.0+")


class _Visible(dict[int, int | None]):
    """A table for `str.translate` that removes invisible characters, filled on demand."""

    def __missing__(self, code: int) -> int | None:
        unseen = code in _UNSEEN or category(chr(code)) == "Cf"
        return self.setdefault(code, None if unseen else code)


_VISIBLE = _Visible()


def bare(name: str) -> str:
    """Return a name without surrounding spaces and without invisible characters.

    Phones add direction marks around names; copied text may have zero-width spaces.
    """
    return (name if name.isascii() else name.translate(_VISIBLE)).strip()


def one_spelling(name: str) -> str:
    """Return the common form of names that look alike.

    It ignores case, Unicode form, spaces, types of dashes and apostrophes, and a final ".0".
    """
    if not name.isascii():
        name = normalize("NFKC", bare(name)).translate(_MARKS)
    name = " ".join(name.casefold().split())
    return number[1] if (number := _FLOAT.fullmatch(name)) else name


def user_name(value: object, field: str) -> str | None:
    """Return a name, cleaned by `bare`; None if it is empty.

    Whole numbers of any type are written as integers.

    Args:
        value: a cell.
        field: config key and column, for messages; these never contain the cell.

    Raises:
        ConfigError: the cell is not a string or number, or is a float that may have lost digits.
    """
    if value is None or value != value:  # noqa: PLR0124  (NaN)
        return None
    if isinstance(value, float) and abs(value) >= 2.0**53:
        raise ConfigError(
            f"{field}: holds a float that may have lost digits, so that several users share one "
            "name; give strings or integers (pandas turns integers into floats if one is missing)"
        )
    if isinstance(value, (float, Decimal)):
        value = int(value) if value == int(value) else float(value)
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        kind = type(value).__name__
        raise ConfigError(f"{field}: holds {kind} values; wanted: strings or numbers")
    return bare(str(value)) or None


def owner_names(value: object, field: str, separator: str | None) -> tuple[str, ...] | None:
    """Return the distinct owners in a cell, in order.

    Args:
        value: a list, or a string if there is a separator.
        field: see `user_name`.
        separator: separator of names in a string.

    Returns:
        None for a null, or for a list with a null or an empty name: an owner is unknown.
        () for an empty list: the user is the only owner.

    Raises:
        ConfigError: the cell is not a list or, with a separator, a string; it is a list printed by
            a program, whose brackets would become parts of names; or `user_name` refuses a name.
    """
    if value is None or value != value:  # noqa: PLR0124  (NaN)
        return None
    if isinstance(value, str) and separator is not None:
        parts: Sequence[str] = value.split(separator) if value.strip() else []
        if any(_PRINTED.fullmatch(part.strip()) for part in (value, *parts)):
            raise ConfigError(
                f"{field}: holds strings in brackets or names in quotes, like a printed list; "
                f"wanted: lists of names, or plain names separated by {separator!r}"
            )
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        raise ConfigError(
            f"{field}: holds {type(value).__name__} values; wanted: lists of names, or strings "
            "with data.owners_separator"
        )
    names = [user_name(part, field) for part in parts]
    return None if None in names else tuple(dict.fromkeys(name for name in names if name))
