"""Random numbers that are computed, not drawn: number `index` of a stream, for many at once.

They decide which examples take part and which are held out. No generator has to be made for each
of 300,000 users, and nobody's numbers depend on who else is there.
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
        index: from 0.
    """
    mixed: Hashes = index.astype(np.uint64)
    mixed = (mixed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(start, np.uint64)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
