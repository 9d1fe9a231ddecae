"""Random streams that are addressed, not consumed: `stream(seed, purpose, round, unit)`.

A stream is a function of its address alone. So a run resumed at round 15 draws the same bits
without replaying rounds 0 to 14, sharding a cohort changes no draw, and two purposes
never share a stream. Nothing in fedsim touches a global generator.

The key of a stream is the first 128 bits of a SHA-256 over its address, for numpy's Philox. A
torch generator is deliberately not used for noise: on the CPU it keeps 32 bits of its seed,
few enough to try them all and subtract the noise.

The noise of a release is addressed further, by parameter and position: see `NoiseKey`.

Secure runs draw their coins from `secret_stream` and their noise under `secret_noise_key`: keys of
the operating system, which have no address.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR

_ZEROS = memoryview(bytes(2**20))  # what is encrypted; to write them anew takes a third of the time

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
    "scores",
    "tuning",
]


class RandomSource(Protocol):
    """What sampling needs of randomness; `numpy.random.Generator` has it."""

    def random(self, size: int) -> npt.NDArray[np.float64]:
        """Return `size` independent uniforms on [0, 1)."""
        ...


class AesStream:
    """Bits and uniforms from AES-128 in counter mode (FIPS 197, SP 800-38A), by OpenSSL.

    Who does not have the key cannot tell its bits from coins. The counter starts at 0.

    Args:
        key: 16 bytes.

    Examples:
        >>> AesStream(bytes(16)).random(2).round(3).tolist()
        [0.231, 0.18]
    """

    SPARE = 2
    """Words that OpenSSL wants to have room for beyond those that it writes."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(AES128(key), CTR(bytes(16))).encryptor()

    def words(
        self, count: int, room: npt.NDArray[np.uint64] | None = None
    ) -> npt.NDArray[np.uint64]:
        """Return the next `count` words of 64 bits; in `room`, which has `SPARE` words more."""
        if room is None:
            room = np.empty(count + self.SPARE, dtype=np.uint64)
        zeros = _ZEROS[: 8 * count] if 8 * count <= len(_ZEROS) else bytes(8 * count)
        self._cipher.update_into(zeros, room.view(np.uint8).data)
        return room[:count].view("<u8")

    def random(self, size: int) -> npt.NDArray[np.float64]:
        """Return the next `size` uniforms on [0, 1), of 53 bits each."""
        uniforms = (self.words(size) >> np.uint64(11)).astype(np.float64)
        uniforms *= 2.0**-53
        return uniforms


@dataclass(frozen=True)
class NoiseKey:
    """The key of one release's noise. Each chunk of each parameter has a generator of its own.

    So any part of the noise can be drawn anywhere, in any order and by any number of threads, to
    the same bits. A chunk's stream is AES-128 under the first 128 bits of a SHA-256 over this key,
    the chunk's number and the parameter's name.

    Attributes:
        key: 32 bytes; who has them can compute the noise.

    Examples:
        >>> key = noise_key(seed=0, purpose="noise", round=3)
        >>> one, again = key.chunk("layer.weight", 7), key.chunk("layer.weight", 7)
        >>> bool((one.random(3) == again.random(3)).all())
        True
    """

    key: bytes = field(repr=False)

    def chunk(self, parameter: str, index: int) -> AesStream:
        """Return the stream of one chunk, from its beginning."""
        digest = hashlib.sha256(self.key + f"/{index}/{parameter}".encode()).digest()
        return AesStream(digest[:16])


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


def secret_stream() -> AesStream:
    """Return a stream under a key that is drawn now, kept nowhere and never drawn again."""
    return AesStream(secrets.token_bytes(16))


def noise_key(seed: int, purpose: Purpose, round: int) -> NoiseKey:
    """Return the key of one address, as of `stream`."""
    return NoiseKey(hashlib.sha256(f"fedsim/2/{seed}/{purpose}/{round}".encode()).digest())


def secret_noise_key() -> NoiseKey:
    """Return a key that is drawn now, kept nowhere and never drawn again."""
    return NoiseKey(secrets.token_bytes(32))
