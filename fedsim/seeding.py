"""Random streams that are addressed, not consumed: `stream(seed, purpose, round, unit)`.

A stream is a function of its address alone. So a run resumed at round 15 draws the same bits
without replaying rounds 0 to 14, sharding a cohort changes no draw, and two purposes
never share a stream. Nothing in fedsim touches a global generator.

The key of a stream is the first 128 bits of a SHA-256 over its address, for numpy's Philox. A
torch generator is deliberately not used for noise: on the CPU it keeps 32 bits of its seed,
few enough to try them all and subtract the noise.

The noise of a release is addressed further, by parameter and position: see `NoiseKey`.

Secure runs draw their coins from `secret_stream` and their noise under `secret_noise_key`: keys of
the operating system, which have no address. Which of the two a run draws from, `Draws` knows.
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

_OF_A_SCORE = ":score"

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


_DRAWN_FOR: dict[tuple[int, Purpose, int, int], str] = {}
"""By its address, what a secret draw was made for in this process: see `Draws.draw_once`."""


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


@dataclass(frozen=True)
class Draws:
    """The coins and the noise of a run's rounds.

    Attributes:
        seed: of addressed draws; a secret of 128 bits where those of a secure run are.
        entropy: "secure" draws from new keys of the operating system, "seeded" from `seed`.
        once: whether a secure run, too, draws from `seed`, so that a round that is done again has
            the same draws: where one price pays for the whole run, each round once. The seed is
            then kept where that of the texts' split is.
    """

    seed: int = field(repr=False)
    entropy: Literal["seeded", "secure"]
    once: bool = False

    @property
    def repeat(self) -> bool:
        """Whether a round that is done again has the same draws."""
        return self.once or self.entropy == "seeded"

    @property
    def kept(self) -> bool:
        """Whether draws are secret and yet repeat: then each may make one release alone."""
        return self.once and self.entropy == "secure"

    @property
    def release_id(self) -> str:
        """The id of a round's noise draw in the ledger: a seeded one can be repeated.

        A ledger is shared and kept apart from the seed, so it holds a one-way hash of the seed
        (128 bits): the noise cannot be computed from it. With secure noise it names the run.
        """
        hashed = hashlib.sha256(f"fedsim/release-id/{self.seed}".encode()).hexdigest()
        kind = "kept" if self.kept else self.entropy
        return f"{kind}:{hashed[:32]}"

    @property
    def score_release_id(self) -> str:
        """The id of the noise of a private score in the ledger."""
        return f"{self.release_id}{_OF_A_SCORE}"

    @property
    def release_ids(self) -> tuple[str, str]:
        """The ids of the run's own noise draws: of its rounds and of its private scores."""
        return self.release_id, self.score_release_id

    def coins(self, round: int) -> RandomSource:
        """Return the source of a round's sampling coins."""
        if self.entropy == "seeded":
            return stream(self.seed, "sampling", round)
        return self._key("sampling", round).chunk("coins", 0) if self.once else secret_stream()

    def noise(self, round: int, purpose: Purpose = "noise") -> NoiseKey:
        """Return the key of a round's noise, or of that of another release at the same time."""
        return self._key(purpose, round) if self.repeat else secret_noise_key()

    def test_coins(self, round: int, unit: int, answer: str) -> RandomSource:
        """Return a source of the noise of a test of a run's rounds: see `estimators.TestCoins`.

        Raises:
            ValueError: this process drew it for another answer before.
        """
        if self.entropy == "seeded":
            return stream(self.seed, "concentration", round, unit)
        self.draw_once("concentration", round, unit, answer)
        return self._key("concentration", round).chunk("coins", unit)

    def draw_once(self, purpose: Purpose, round: int, unit: int, made_from: str) -> None:
        """Raise `ValueError` if this process drew from an address for another release before.

        Args:
            purpose: as of `stream`.
            round: the same.
            unit: the same.
            made_from: what the draw is for; the difference of two with the same noise has none.
        """
        if _DRAWN_FOR.setdefault((self.seed, purpose, round, unit), made_from) != made_from:
            raise ValueError(
                f"round {round}: the noise of this plan was drawn for another release before; "
                "`build_plan` makes a plan with draws of its own"
            )

    def _key(self, purpose: Purpose, round: int) -> NoiseKey:
        """Return the key of an address; the seed is all that is secret of it."""
        if self.entropy == "secure" and self.seed < 2**64:
            raise ValueError(
                f"seed = {self.seed}: with secure noise and one price for a run all rounds are "
                "drawn from it, so it must be a secret of 128 bits; `build_plan` sets it"
            )
        return noise_key(self.seed, purpose, round)


def is_score(release: str) -> bool:
    """Whether an id of the ledger is that of private scores, of this run or of another."""
    return release.endswith(_OF_A_SCORE)
