"""Who a user is and what an example is, as numbers that do not depend on any place in a file.

All that is chosen for a user (held-out examples, pool, the examples of a round, their order, the
masks of dropout) is a hash of these keys: see `fedsim.data.hashing`. A key says nothing that the
store does not hold anyway.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedsim.data.hashing import Hashes, hashes

AT_ONCE = 1 << 20  # tokens whose hashes are in memory at one time, unless one example has more
_START = 0x66656473696D2F33  # where hashes of tokens start


def user_keys(names: Path, num_users: int) -> Hashes:
    """Return the key of each user: the first 64 bits of a SHA-256 of the name.

    Two users with the same key would have the same random numbers; each would still be a function
    of their own name and text.

    Args:
        names: a file with a JSON string a line.
        num_users: how many lines it has.

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
    tokens: npt.NDArray[np.unsignedinteger[Any]], offsets: npt.NDArray[np.int64]
) -> Iterator[Hashes]:
    """Yield the keys of the examples in their order, some at a time: a hash of their token ids.

    The key of tokens t_0 … t_n is a hash of n and of Σ_p hash(t_p, p), 64 bits. It is no
    cryptographic hash: keys are compared only within one user, who gains nothing by two examples
    of the same key.

    Args:
        tokens: (tokens,) of all examples, end to end.
        offsets: (examples + 1,) int64: example e is tokens[offsets[e] : offsets[e + 1]], not empty.

    Yields:
        uint64, together (examples,).
    """
    first, last = 0, len(offsets) - 1
    while first < last:
        limit = offsets[first] + AT_ONCE
        until = max(first + 1, int(np.searchsorted(offsets, limit, side="right")) - 1)
        starts = offsets[first:until] - offsets[first]
        lengths = np.diff(offsets[first : until + 1])
        ids = tokens[offsets[first] : offsets[until]].astype(np.uint64)
        place = np.arange(len(ids)) - np.repeat(starts, lengths)
        ids |= place.astype(np.uint64) << np.uint64(32)
        yield hashes(np.add.reduceat(hashes(_START, ids), starts), lengths)
        first = until
