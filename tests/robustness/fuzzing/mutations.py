"""Hostile changes to bytes and to trees of JSON or TOML values, all from one generator."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

Dice = np.random.Generator
_T = TypeVar("_T")

ODD_TEXTS = (
    "",
    " ",
    "NaN",
    "Infinity",
    "0",
    "true",
    "../../outside/secret.json",
    "/proc/self/environ",
    "\u0000",
    "a\nb",
    "\u2028\u202e\ufeff\U0001f600",
    "İ",
    "x" * 200_000,
    "[" * 50_000,
    "{0.__class__}",
    "%s%n",
)
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    10**12,
    10**30,
    -(10**18),
    10**400,
    0.0,
    -0.0,
    -0.5,
    0.5,
    1e-320,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    [],
    {},
    [[]],
    [None],
    [1, "a", {}],
    {"a": {"b": []}},
)
_ODD_BYTES = (b"\x00", b"\xff", b"\xff\xfe", b"\xed\xa0\x80", b"{", b"[" * 3000, b'"', b"\n", b"9")


def pick(dice: Dice, choices: Sequence[_T]) -> _T:
    """Return one of the choices."""
    return choices[int(dice.integers(len(choices)))]


def odd_value(dice: Dice) -> Any:  # noqa: ANN401  (whatever JSON can say, and more)
    """Return a value that nobody expects: a number, a text, an empty or a deep thing."""
    kind = dice.random()
    if kind < 0.6:
        return copy.deepcopy(pick(dice, ODD_VALUES))
    if kind < 0.95:
        return pick(dice, ODD_TEXTS)
    deep: Any = 1
    for _ in range(int(pick(dice, [50, 300]))):
        deep = [deep] if dice.random() < 0.5 else {"a": deep}
    return deep


def changed_bytes(dice: Dice, content: bytes) -> bytes:
    """Return the bytes with one to four of: bits flipped, pieces cut, doubled, or put in."""
    data = bytearray(content)
    for _ in range(int(dice.integers(1, 5))):
        start = int(dice.integers(len(data) + 1))
        # Heads decide what the rest means: half of the changes are among the first bytes.
        start = start % 128 if dice.random() < 0.5 else start
        stop = min(len(data), start + int(2 ** dice.uniform(0, 10)))
        how = int(dice.integers(6))
        if how == 0 and start < len(data):
            data[start] ^= 1 << int(dice.integers(8))
        elif how == 1:
            del data[start:]
        elif how == 2:
            del data[start:stop]
        elif how == 3:
            data[start:start] = data[start:stop]
        elif how == 4:
            data[start:start] = pick(dice, _ODD_BYTES)
        else:
            data[start:stop] = dice.bytes(stop - start)
    return bytes(data)


def changed_tree(dice: Dice, tree: Any) -> Any:  # noqa: ANN401
    """Return a copy of nested dicts and lists with one to three places changed.

    A place is taken out, given an odd value, another place's value, a key of another name, or is
    said twice.
    """
    tree = copy.deepcopy(tree)
    for _ in range(int(dice.integers(1, 4))):
        places = list(_places(tree)) if isinstance(tree, dict | list) else []
        if not places or dice.random() < 0.02:
            return odd_value(dice)
        holder, key = pick(dice, places)
        how = dice.random()
        if how < 0.2:
            del holder[key]
        elif how < 0.75:
            holder[key] = _other(dice, holder[key])
        elif how < 0.85:
            donor, name = pick(dice, places)
            if name in donor if isinstance(donor, dict) else name < len(donor):
                holder[key] = copy.deepcopy(donor[name])
        elif isinstance(holder, dict):
            holder[pick(dice, ["", "x", "__class__", "../x", f"{key} "])] = holder[key]
        else:
            holder.insert(key, copy.deepcopy(holder[key]))
    return tree


def _other(dice: Dice, value: Any) -> Any:  # noqa: ANN401
    """Return a value near by for a number, half of the time, else an odd one."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and abs(value) < 1e300 and dice.random() < 0.5:
        return pick(dice, [value + 1, value - 1, -value, value * 1000, float(value), str(value)])
    return odd_value(dice)


def _places(tree: Any) -> Any:  # noqa: ANN401
    """Yield (holder, key) of everything below the root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield tree, key
        if isinstance(value, dict | list):
            yield from _places(value)
