"""Random numbers that are computed, not drawn: a hash for each of many users or examples at once.

They decide which examples take part, which are held out, in which order local training sees them
and what dropout drops. What is hashed is the key of a user (from the name) and the keys of the
user's examples (from their tokens), never a place in the store: a user who is added, removed or
renamed, or rows in another order, change nobody else's numbers.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedsim.seeding import Purpose, stream

Hashes = npt.NDArray[np.uint64]


@lru_cache(maxsize=64)
def base(seed: int, purpose: Purpose, round: int) -> int:
    """Return the first 64 bits of `stream(seed, purpose, round)`, where hashing starts."""
    return int(stream(seed, purpose, round).integers(0, 1 << 64, dtype=np.uint64))


def hashes(start: int | Hashes, index: npt.NDArray[np.integer]) -> Hashes:
    """Return output number `index` of the SplitMix64 generator that starts at `start`.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. It
    permutes the 64-bit numbers: two indices from one start never have the same hash.

    Args:
        start: one number, or an array that broadcasts with `index`.
        index: a key, or a number from 0.
    """
    mixed: Hashes = index.astype(np.uint64)
    mixed = (mixed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(start, np.uint64)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


_PLACE_BITS = 20


def in_order_of(values: Hashes) -> Hashes:
    """Return distinct numbers within each row, in the order of the hashes in the row.

    The lowest 20 bits are the place, more of them only in a row of over a million. So two examples
    with the same text, which have the same hash, are told apart; which of the two comes first
    changes nothing. Of other examples the 44 bits above are the same with a probability of 2⁻⁴⁴ a
    pair.

    Args:
        values: (..., places) uint64.
    """
    places = values.shape[-1]
    bits = max(_PLACE_BITS, max(places - 1, 0).bit_length())
    mask = np.uint64((1 << bits) - 1)
    return (values & ~mask) | np.arange(places, dtype=np.uint64)
