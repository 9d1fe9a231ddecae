"""Random streams that are addressed, not consumed: `stream(seed, purpose, round, unit)`.

A stream is a function of its address alone. So a run resumed at round 15 draws the same bits
without replaying rounds 0 to 14, sharding a cohort changes no draw, and two purposes
never share a stream. Nothing in fedsim touches a global generator.

The key of a stream is the first 128 bits of a SHA-256 over its address, for numpy's Philox. A
torch generator is deliberately not used for noise: on the CPU it keeps 32 bits of its seed,
few enough to try them all and subtract the noise.

Secure runs draw their coins and noise from `secret_stream` instead, which has no address.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from randomgen import AESCounter

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


def secret_stream() -> np.random.Generator:
    """Return a generator under a key that is drawn now, kept nowhere and never drawn again.

    AES-128 in counter mode (FIPS 197), its key of 128 bits from the operating system. Who does not
    have the key cannot tell its bits from coins, so the noise cannot be recomputed, not even with
    all that is on disk; nor can it be replayed.

    Normals are numpy's, by the ziggurat: 52 random bits of mantissa up to 3.65 standard deviations
    and from there on -ln(1 - u)/3.65 of a uniform u of 53 bits, accepted or not. So values lie less
    than 10⁻⁹ apart up to 8 standard deviations and less than 10⁻⁶ up to 10, and end at 12.2.
    """
    return np.random.Generator(AESCounter(key=secrets.randbits(128)))
