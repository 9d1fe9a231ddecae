"""Streams are functions of their address; the operating system's entropy follows its laws."""

from __future__ import annotations

import hashlib
import itertools
from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES128
from cryptography.hazmat.primitives.ciphers.modes import ECB
from scipy import stats

from fedsim.seeding import (
    AesStream,
    Draws,
    Purpose,
    noise_key,
    secret_noise_key,
    secret_stream,
    stream,
)

PURPOSES: list[Purpose] = list(get_args(Purpose))
# Addresses that a careless key (a sum, a product, a concatenation without separators) would merge.
ADDRESSES: list[tuple[int, Purpose, int, int]] = [
    *((0, purpose, 0, 0) for purpose in PURPOSES),
    *((seed, "noise", 0, 0) for seed in (1, -1, 11, 2**32, 2**64, 2**64 + 1)),
    *((0, "noise", round, unit) for round, unit in [(0, 1), (1, 0), (1, 1), (1, 11), (11, 1)]),
    (1, "noise", 11, 1),
]
# A secret stream is not seeded: a right law fails here once in a million runs.
UNLUCKY = 1e-6


@pytest.mark.parametrize("address", ADDRESSES, ids=str)
def test_an_address_gives_the_same_bits_again(address: tuple[int, Purpose, int, int]) -> None:
    first, again = stream(*address), stream(*address)
    first_half = first.random(500), first.standard_normal(500)
    assert np.array_equal(first_half[0], again.random(500))
    assert np.array_equal(first_half[1], again.standard_normal(500))


def test_addresses_give_independent_streams() -> None:
    size = 20_000
    draws = [stream(*address).standard_normal(size) for address in ADDRESSES]
    pairs = list(itertools.combinations(range(len(draws)), 2))
    correlations = np.asarray(np.corrcoef(draws))
    # Under independence each coefficient is normal with deviation size^-1/2; 5 of them leave
    # one chance in ten thousand over all pairs.
    assert max(abs(correlations[pair]) for pair in pairs) < 5 / np.sqrt(size)
    # Nor is one stream another one further on.
    assert len({value for draw in draws for value in draw.tolist()}) == size * len(draws)


def test_the_address_scheme_stays_what_it_is() -> None:
    """Seeded runs of older versions can be repeated only while it is kept."""
    digest = hashlib.sha256(b"fedsim/1/-3/noise/5/2").digest()
    expected = np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(4)
    assert np.array_equal(stream(-3, "noise", 5, 2).bit_generator.random_raw(4), expected)


def uniforms_p_value(sample: npt.NDArray[np.float64]) -> float:
    return float(stats.kstest(sample, stats.uniform.cdf).pvalue)


def test_secret_streams_draw_uniforms() -> None:
    sample = secret_stream().random(100_000)
    assert sample.dtype == np.float64
    assert sample.min() >= 0.0
    assert sample.max() < 1.0
    assert uniforms_p_value(sample) > UNLUCKY
    assert abs(np.corrcoef(sample[:-1], sample[1:])[0, 1]) < 5 / np.sqrt(len(sample))


def test_streams_are_aes_in_counter_mode() -> None:
    """NIST SP 800-38A, F.5.1 (AES-128 in counter mode) begins at another counter: FIPS 197 does."""
    key, block = bytes(range(16)), bytes.fromhex("00112233445566778899aabbccddeeff")
    one = Cipher(AES128(key), ECB()).encryptor().update(block)  # noqa: S305  (the block cipher)
    assert one.hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"  # FIPS 197, Appendix C.1
    blocks = b"".join(number.to_bytes(16, "big") for number in range(3))
    expected = Cipher(AES128(key), ECB()).encryptor().update(blocks)  # noqa: S305
    stream = AesStream(key)
    assert stream.words(2).tobytes() + stream.words(4).tobytes() == expected


def test_many_words_and_words_in_a_room_are_the_same_words() -> None:
    count = 300_000  # more than are encrypted at once from zeros that are there
    whole = AesStream(bytes(16)).words(count)
    room = np.empty(count + AesStream.SPARE, dtype=np.uint64)
    assert np.array_equal(AesStream(bytes(16)).words(count, room), whole)
    assert len(np.unique(whole)) == count


def test_secret_keys_have_128_and_256_bits_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_bytes", lambda size: bytes(range(size)))
    assert secret_noise_key().key == bytes(range(32))
    assert np.array_equal(secret_stream().words(9), AesStream(bytes(range(16))).words(9))
    assert "key" not in repr(secret_noise_key())
    monkeypatch.undo()
    assert len({secret_noise_key().key for _ in range(100)}) == 100
    assert len({secret_stream().words(1)[0] for _ in range(100)}) == 100


def test_the_address_scheme_of_noise_stays_what_it_is() -> None:
    """Seeded runs of older versions can be repeated only while it is kept."""
    key = hashlib.sha256(b"fedsim/2/-3/noise/5").digest()
    assert noise_key(-3, "noise", 5).key == key
    chunk = hashlib.sha256(key + b"/12/h.0/w").digest()[:16]
    drawn = noise_key(-3, "noise", 5).chunk("h.0/w", 12).words(4)
    assert np.array_equal(drawn, AesStream(chunk).words(4))


def test_coins_of_a_large_pool_are_uniform_and_independent() -> None:
    """Of consecutive addresses too, and independent between rounds, purposes and neighbours."""
    count = 342_000
    coins = Draws(3, "seeded").coins(np.arange(count, dtype=np.uint64))
    drawn = [coins.of_units(0), coins.of_units(1), coins.of_users(0)]
    assert min(map(uniforms_p_value, drawn)) > 1e-4
    drawn.append(np.roll(drawn[0], 1))
    correlations = np.corrcoef(drawn) - np.eye(4)
    assert np.abs(correlations).max() < 5 / np.sqrt(count)
