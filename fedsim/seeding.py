"""Random streams by address: `stream(seed, purpose, round, unit)`.

A stream is a function of its address only. So a run resumed at round 15 draws the same bits without
replaying rounds 0 to 14. Sharding a cohort changes no draw, and two purposes never share a stream.
fedsim never uses a global generator.

There are two kinds of randomness; `Draws` holds the kind of a run:

- seeded: every draw is a function of (seed, purpose, round, user or example). Two runs with one
  seed share every draw with the same address, so their results can be compared in pairs.
- secure: coins and noise come from keys of the operating system (`secret_stream`,
  `secret_noise_key`), which have no address.

The key of a stream is the first 128 bits of a SHA-256 over its address, for numpy's Philox. Torch's
CPU generator is not used for noise: it keeps only 32 bits of its seed, and all of them can be
tried. The address of noise also has parameter and position (`NoiseKey`); that of coins has a digest
of the user's name or of the example (`hashes`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import CTR

_OF_A_SCORE = ":score"
_FEWEST = 2**64  # a smaller seed is not a secret of 128 bits

_ZEROS = memoryview(bytes(2**20))  # plaintext; allocating it at each call takes a third longer

Hashes = npt.NDArray[np.uint64]
Uniforms = npt.NDArray[np.float64]

Purpose = Literal[
    "sampling",
    "groups",
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
    "part",
    "planning",
    "audit",
    "attack",
    "canaries",
    "scores",
    "tuning",
]


class RandomSource(Protocol):
    """A source of uniforms; `numpy.random.Generator` is one."""

    def random(self, size: int) -> Uniforms:
        """Return `size` independent uniforms on [0, 1)."""
        ...


class Coins(Protocol):
    """A sampler's randomness: uniforms on [0, 1), one for each unit of the pool, in pool order.

    Each call for a round returns the same uniforms if the run is seeded or has one price.
    """

    def of_units(self, round: int) -> Uniforms:
        """Return (num_units,) uniforms of a round, independent."""
        ...

    def of_users(self, round: int) -> Uniforms:
        """Return (num_units,) uniforms: equal for units of one user, independent between users."""
        ...


class AesStream:
    """Bits and uniforms from AES-128 in counter mode (FIPS 197, SP 800-38A), by OpenSSL.

    Without the key, its bits cannot be told from random coins. The counter starts at 0.

    Args:
        key: 16 bytes.

    Examples:
        >>> AesStream(bytes(16)).random(2).round(3).tolist()
        [0.231, 0.18]
    """

    SPARE = 2
    """Extra words of buffer that OpenSSL requires."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(AES128(key), CTR(bytes(16))).encryptor()

    def words(
        self, count: int, room: npt.NDArray[np.uint64] | None = None
    ) -> npt.NDArray[np.uint64]:
        """Return the next `count` words of 64 bits.

        Args:
            count: number of words.
            room: (count + SPARE,) buffer to write into; None for a new one.
        """
        if room is None:
            room = np.empty(count + self.SPARE, dtype=np.uint64)
        zeros = _ZEROS[: 8 * count] if 8 * count <= len(_ZEROS) else bytes(8 * count)
        self._cipher.update_into(zeros, room.view(np.uint8).data)
        return room[:count].view("<u8")

    def random(self, size: int) -> Uniforms:
        """Return the next `size` uniforms on [0, 1), of 53 bits each."""
        return _uniforms(self.words(size))


def _uniforms(words: Hashes) -> Uniforms:
    uniforms = (words >> np.uint64(11)).astype(np.float64)
    uniforms *= 2.0**-53
    return uniforms


@dataclass(frozen=True)
class NoiseKey:
    """The key of one release's noise. Each chunk of each parameter has its own generator.

    So the noise has the same bits on every machine, in any order, with any number of threads. A
    chunk's stream is AES-128 under the first 128 bits of a SHA-256 over this key, the chunk's
    number and the parameter's name.

    Attributes:
        key: 32 bytes, secret: the noise can be computed from them.
        first: number of the first chunk, by parameter, if only a part of a parameter gets noise.

    Examples:
        >>> key = noise_key(seed=0, purpose="noise", round=3)
        >>> one, again = key.chunk("layer.weight", 7), key.chunk("layer.weight", 7)
        >>> bool((one.random(3) == again.random(3)).all())
        True
    """

    key: bytes = field(repr=False)
    first: Mapping[str, int] = field(default_factory=dict, hash=False, kw_only=True)

    def chunk(self, parameter: str, index: int) -> AesStream:
        """Return the stream of one chunk, from its beginning."""
        index += self.first.get(parameter, 0)
        digest = hashlib.sha256(self.key + f"/{index}/{parameter}".encode()).digest()
        return AesStream(digest[:16])


def stream(seed: int, purpose: Purpose, round: int = 0, unit: int = 0) -> np.random.Generator:
    """Return the generator of one address, at its start.

    Args:
        seed: the run's seed, any integer.
        purpose: purpose of the draws; streams of different purposes are independent.
        round: the round, from 0.
        unit: a user, an example or any other index within the round.

    Examples:
        >>> a, b = stream(1, "sampling", round=7), stream(1, "sampling", round=7)
        >>> bool((a.random(3) == b.random(3)).all())
        True
    """
    address = f"fedsim/1/{seed}/{purpose}/{round}/{unit}".encode()
    key = int.from_bytes(hashlib.sha256(address).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=key))


@lru_cache(maxsize=64)
def base(seed: int, purpose: Purpose, round: int) -> int:
    """Return the first 64 bits of `stream(seed, purpose, round)`: a start for `hashes`."""
    return int(stream(seed, purpose, round).integers(0, 1 << 64, dtype=np.uint64))


def hashes(start: int | Hashes, index: npt.NDArray[np.integer]) -> Hashes:
    """Return output number `index` of the SplitMix64 generator that starts at `start`.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. The
    generator permutes the 64-bit numbers: two indices of one start never have the same hash.

    Args:
        start: one number, or an array that broadcasts with `index`.
        index: keys, or numbers from 0.
    """
    mixed: Hashes = index.astype(np.uint64)
    mixed = (mixed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.asarray(start, np.uint64)
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def secret_stream() -> AesStream:
    """Return a stream under a new random key, which is not stored."""
    return AesStream(secrets.token_bytes(16))


def noise_key(seed: int, purpose: Purpose, round: int) -> NoiseKey:
    """Return the key of an address; see `stream`."""
    return NoiseKey(hashlib.sha256(f"fedsim/2/{seed}/{purpose}/{round}".encode()).digest())


def secret_noise_key() -> NoiseKey:
    """Return a new random key, which is not stored."""
    return NoiseKey(secrets.token_bytes(32))


@dataclass(frozen=True)
class Draws:
    """The coins and the noise of a run's rounds.

    Attributes:
        seed: seed of addressed draws; a secret of 128 bits if the run is secure and `once`.
        entropy: "secure" draws from new keys of the operating system, "seeded" from `seed`.
        once: whether one price pays for each round of the run once. A secure run then also draws
            from `seed`, so that a repeated round has the same draws.
    """

    seed: int = field(repr=False)
    entropy: Literal["seeded", "secure"]
    once: bool = False

    @property
    def repeat(self) -> bool:
        """Whether a repeated round has the same draws."""
        return self.once or self.entropy == "seeded"

    @property
    def release_id(self) -> str:
        """The id of the rounds' noise in ledgers.

        With secure noise it is a one-way hash of the run's secret seed (128 bits).
        """
        if self.entropy == "seeded":
            return "seeded"
        hashed = hashlib.sha256(f"fedsim/release-id/{self.seed}".encode()).hexdigest()
        return f"{'kept' if self.once else 'secure'}:{hashed[:32]}"

    @property
    def score_release_id(self) -> str:
        """The id of the noise of private scores in ledgers."""
        return f"{self.release_id}{_OF_A_SCORE}"

    def coins(self, units: Hashes, users: Hashes | None = None) -> Coins:
        """Return the coins of a pool's units.

        Args:
            units: (num_units,) uint64, the address of each unit.
            users: (num_units,) uint64, the address of each unit's user; None for `units`.
        """
        return _UnitCoins(self, units, units if users is None else users)

    def noise(self, round: int, purpose: Purpose = "noise") -> NoiseKey:
        """Return the key of a round's noise, or of the noise of another release in that round."""
        return self.key(purpose, round) if self.repeat else secret_noise_key()

    def part_source(self, round: int, index: int) -> RandomSource:
        """Return a random source for other draws of a plug-in, such as a test of a round."""
        return self.key("part", round).chunk("coins", index) if self.repeat else secret_stream()

    def key(self, purpose: Purpose, round: int) -> NoiseKey:
        """Return the key of an address.

        Raises:
            ValueError: the run is secure and its seed is not secret.
        """
        if self.entropy == "secure" and self.seed < _FEWEST:
            raise ValueError(
                f"seed = {self.seed}: with secure noise and one price for a run, all rounds are "
                "drawn from this seed, so it must be a secret of 128 bits; give "
                "secrets.randbits(128), as `build_plan` does"
            )
        return noise_key(self.seed, purpose, round)


@dataclass(frozen=True, eq=False)
class _UnitCoins:
    """Coins of a run: seeded coins by address, secret coins in pool order."""

    draws: Draws
    units: Hashes
    users: Hashes

    def of_units(self, round: int) -> Uniforms:
        if self.draws.entropy == "seeded":
            return self._addressed("sampling", round, self.units)
        return self._secret("sampling", round).random(len(self.units))

    def of_users(self, round: int) -> Uniforms:
        if self.draws.entropy == "seeded":
            return self._addressed("groups", round, self.users)
        distinct, places = np.unique(self.users, return_inverse=True)
        return self._secret("groups", round).random(len(distinct))[places]

    def _addressed(self, purpose: Purpose, round: int, who: Hashes) -> Uniforms:
        hashed = hashes(base(self.draws.seed, purpose, round), who)
        return _uniforms(hashed)

    def _secret(self, purpose: Purpose, round: int) -> AesStream:
        if self.draws.once:
            return self.draws.key(purpose, round).chunk("coins", 0)
        return secret_stream()


def is_score(release: str) -> bool:
    """Return whether a release id in a ledger belongs to private scores, of any run."""
    return release.endswith(_OF_A_SCORE)
