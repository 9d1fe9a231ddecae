"""Keys: 64-bit hashes of users' names and examples' tokens, the addresses of random draws."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.store.rows import bounds_of
from fedsim.seeding import Hashes, hashes

AT_ONCE = 1 << 20  # tokens hashed at a time, unless one example has more
_START = 0x66656473696D2F33  # start value for hashes of tokens


def user_keys(names: Path, num_users: int) -> Hashes:
    """Return the key of each user: the first 64 bits of a SHA-256 of the name.

    Two users with the same key would share random numbers; these still depend only on each user's
    own name and text.

    Args:
        names: a file with one JSON string per line.
        num_users: number of lines.

    Returns:
        (num_users,) uint64.
    """
    with names.open(encoding="utf-8") as lines:
        return np.fromiter(map(_user_key, lines), np.uint64, num_users)


def _user_key(line: str) -> int:
    name: str = json.loads(line)
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "little")


def example_keys(
    tokens: npt.NDArray[np.integer[Any]], offsets: npt.NDArray[np.int64]
) -> Iterator[Hashes]:
    """Yield the keys of the examples in order, in parts: hashes of their token ids.

    The key of tokens t_0 … t_n is a hash of n and of Σ_p hash(t_p, p), 64 bits. It need not be a
    cryptographic hash: keys are compared only within one user, who gains nothing from a collision.

    Args:
        tokens: (tokens,) tokens of all examples, concatenated.
        offsets: (examples + 1,) int64: example e is tokens[offsets[e] : offsets[e + 1]], not empty.

    Yields:
        uint64, together (examples,).
    """
    for first, until in pairwise(bounds_of(offsets, AT_ONCE)):
        starts = offsets[first:until] - offsets[first]
        lengths = np.diff(offsets[first : until + 1])
        ids = tokens[offsets[first] : offsets[until]].astype(np.uint32).astype(np.uint64)
        place = np.arange(len(ids)) - np.repeat(starts, lengths)
        ids |= place.astype(np.uint64) << np.uint64(32)
        yield hashes(np.add.reduceat(hashes(_START, ids), starts), lengths)
