"""Random streams that are addressed, not consumed: `stream(seed, purpose, round, unit)`.

A stream is a function of its address alone. So a run resumed at round 15 draws the same bits
without replaying rounds 0 to 14, sharding a cohort changes nobody's draws, and two purposes
never share a stream. Nothing in fedsim touches a global generator.

The key of a stream is the first 128 bits of a SHA-256 over its address, for numpy's Philox. A
torch generator is deliberately not used for noise: on the CPU it keeps 32 bits of its seed,
few enough to try them all and subtract the noise.
"""

from __future__ import annotations

import hashlib
import os
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

Purpose = Literal[
    "sampling",
    "noise",
    "clip",
    "selection",
    "pooling",
    "split",
    "local",
    "model",
    "samples",
    "personalisation",
    "dropout",
    "concentration",
    "planning",
    "audit",
    "attack",
    "canaries",
]


class RandomSource(Protocol):
    """What sampling and noise need of randomness; `numpy.random.Generator` has it."""

    def random(self, size: int) -> npt.NDArray[np.float64]:
        """Return `size` independent uniforms on [0, 1)."""
        ...

    def standard_normal(self, size: int) -> npt.NDArray[np.float64]:
        """Return `size` independent standard normals."""
        ...


def stream(seed: int, purpose: Purpose, round: int = 0, unit: int = 0) -> np.random.Generator:
    """Return the generator of one address, always from its beginning.

    Args:
        seed: the run's seed, any integer.
        purpose: what the draws are for; streams of different purposes are independent.
        round: the round, from 0.
        unit: a user, an example or any other index within the round.

    Examples:
        >>> a, b = stream(1, "sampling", round=7), stream(1, "sampling", round=7)
        >>> bool((a.random(3) == b.random(3)).all())
        True
        >>> from fedsim.sampling import FixedSizeSampling
        >>> draw = FixedSizeSampling(3, 10).draw
        >>> draw(10, 7, lambda round: stream(1, "sampling", round)).tolist()
        [0, 2, 7]
    """
    address = f"fedsim/1/{seed}/{purpose}/{round}/{unit}".encode()
    key = int.from_bytes(hashlib.sha256(address).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=key))


class SystemEntropy:
    """Draws from the operating system's entropy: never repeats, cannot be replayed.

    For models that leave the building: whoever knows the seed of a seeded run can recompute
    its noise and subtract it.
    """

    def random(self, size: int) -> npt.NDArray[np.float64]:
        """Return `size` uniforms on [0, 1) with 53 random bits each."""
        return (self._bits(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def standard_normal(self, size: int) -> npt.NDArray[np.float64]:
        """Return `size` standard normals: a sign, and the inversion of a uniform on (0, 1/2).

        The uniform is a float with an exponent drawn by coins and 52 random bits of mantissa, so
        that far out in the tail values lie as close together as in the middle. One of 53 random
        bits would have gaps from about 6 standard deviations on, and end at 8.
        """
        bits = self._bits(size)
        mantissa = (bits >> np.uint64(12)).astype(np.float64) * 2.0**-52
        exponent = _ZEROS[(bits >> np.uint64(1)) & np.uint64(_COINS)].astype(np.int32)
        (far,) = np.nonzero(exponent == _MANY)  # one in 2048 has no end of its coins yet
        more = [_trailing_zeros(int(word)) for word in self._bits(len(far))]
        exponent[far] += np.array(more, np.int32)
        lower = np.asarray(ndtri(np.ldexp(1.0 + mantissa, -2 - exponent)), dtype=np.float64)
        return np.where(bits & np.uint64(1), lower, -lower)

    @staticmethod
    def _bits(size: int) -> npt.NDArray[np.uint64]:
        return np.frombuffer(os.urandom(8 * size), dtype=np.uint64)


def _trailing_zeros(word: int, of: int = 64) -> int:
    return (word & -word).bit_length() - 1 if word else of


_MANY, _COINS = 11, 2**11 - 1
_ZEROS = np.array([_trailing_zeros(word, _MANY) for word in range(_COINS + 1)], dtype=np.int8)
