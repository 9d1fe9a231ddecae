"""Names of users and owners, as a source's cells hold them.

A name is the unit of privacy, so it is read with care: one person never appears under two names
because a column's type changed ("7" and "7.0"), and two never under one ("007" and "7").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedsim.errors import ConfigError

_EXACT = 2.0**53  # floats from here on stand for several integers
_EXACT_IN_A_LIST = 2.0**24  # lists of numbers can be of float32, and users beside them of more bits


def user_name(value: object, field: str, exact: float = _EXACT) -> str | None:
    """Return a name; integers and whole floats are written as integers, an empty name is None.

    Args:
        value: a cell.
        field: the key and its column, for messages.
        exact: a float of that size, or above it, may have lost digits.

    Raises:
        ConfigError: a list, an object, bytes, or a float that has lost digits.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, (list, tuple, dict, bytes)):
        kind = type(value).__name__
        raise ConfigError(f"{field}: holds {kind} values; wanted: strings or integers")
    if isinstance(value, float) and abs(value) >= exact:
        raise ConfigError(
            f"{field}: holds {value!r}, a number of more digits "
            "than a float has: other users may have become the same; give strings or integers "
            "(pandas makes floats of integers where one is missing)"
        )
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    name = str(value)
    return name if name.strip() else None


def owner_names(value: object, field: str, separator: str | None) -> tuple[str, ...] | None:
    """Return the owners that a cell names, each once, in their order.

    Args:
        value: a list, or with a separator a string.
        field: as of `user_name`.
        separator: what stands between names in a string. Spaces around a name are never part of it.

    Returns:
        None for a null, and for a list with a null or an empty name in it: an owner is unknown.
        () for an empty list: nobody owns the text but its user.

    Raises:
        ConfigError: neither a list nor, with a separator, a string; or what `user_name` refuses.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str) and separator is not None:
        parts: Sequence[object] = value.split(separator) if value.strip() else []
    elif isinstance(value, (list, tuple)):
        parts = value
    else:
        raise ConfigError(
            f"{field}: holds {type(value).__name__} values; wanted: lists of names, or strings "
            "and what stands between names in them, as data.owners_separator"
        )
    names = [user_name(part, field, _EXACT_IN_A_LIST) for part in parts]
    known = dict.fromkeys(name.strip() for name in names if name is not None)
    return None if None in names else tuple(known)
