"""Names of users and owners, as a source's cells hold them.

A name is the unit of privacy, so it is read with care: one person never appears under two names
because a column's type changed ("7" and "7.0") or for the spaces around it, and two never under one
("007" and "7").
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from fedsim.errors import ConfigError

# Of Python a list, a tuple or a set, of numpy or R an array, of a database an array.
_PRINTED = re.compile(r"[\w.]*(\[.*\]|\{.*\}|\(.*\))", re.DOTALL)
_QUOTED = re.compile(r"(['\"]).*\1", re.DOTALL)
_EXACT_IN_A_LIST = 2.0**24  # lists of numbers can be of float32, and users beside them of more bits


def user_name(value: object, field: str, exact: float = math.inf) -> str | None:
    """Return a name without the spaces around it, or None of an empty one.

    Whole numbers are written as integers, whatever their type is.

    Args:
        value: a cell. A float of few bits is a `numpy.float32` or `numpy.float16`.
        field: the key and its column, for messages, which never say what a cell holds.
        exact: a float of that size, or above it, may have lost digits, as may one from which on
            its type skips integers.

    Raises:
        ConfigError: neither a string nor a number, or a float that has lost digits.
    """
    if value is None or (isinstance(value, Decimal) and not value.is_finite()):
        return None
    kind = type(value).__name__
    if isinstance(value, (float, np.floating)):
        if math.isnan(value):
            return None
        if abs(float(value)) >= min(exact, 2.0 ** (np.finfo(type(value)).nmant + 1)):
            raise ConfigError(
                f"{field}: holds a {kind} that can have lost digits: other users may have become "
                "the same; give strings or integers (pandas makes floats of integers where one is "
                "missing)"
            )
        value = Decimal(str(value))
    if isinstance(value, Decimal):
        value = int(value) if value == int(value) else f"{value:f}".rstrip("0")
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise ConfigError(f"{field}: holds {kind} values; wanted: strings or numbers")
    return str(value).strip() or None


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
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str) and separator is not None:
        parts: Sequence[str] = value.split(separator) if value.strip() else []
        quoted = any(_QUOTED.fullmatch(part.strip()) for part in parts)
        if quoted or _PRINTED.fullmatch(value.strip()):
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
    names = [user_name(part, field, _EXACT_IN_A_LIST) for part in parts]
    known = dict.fromkeys(name for name in names if name is not None)
    return None if None in names else tuple(known)
