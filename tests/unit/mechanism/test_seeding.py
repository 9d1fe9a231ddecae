"""Streams are functions of their address; the operating system's entropy follows its laws."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from randomgen import AESCounter, UserBitGenerator
from scipy import stats

from fedsim.seeding import Purpose, secret_stream, stream

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


def test_an_address_without_round_and_unit_is_that_of_the_first() -> None:
    whole = stream(5, "noise", 0, 0).random(4)
    assert np.array_equal(stream(5, "noise").random(4), whole)
    assert np.array_equal(stream(5, "noise", 0).random(4), whole)


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


def test_drawing_moves_no_other_stream_and_no_global_generator() -> None:
    before: Any = np.random.get_state()  # noqa: NPY002
    expected = stream(4, "noise", 2).random(10)
    busy = stream(4, "noise", 1)
    busy.random(1000)
    assert np.array_equal(stream(4, "noise", 2).random(10), expected)
    after: Any = np.random.get_state()  # noqa: NPY002
    assert np.array_equal(after[1], before[1])
    assert after[2:] == before[2:]


def test_the_address_scheme_stays_what_it_is() -> None:
    """Seeded runs of older versions can be repeated only while it is kept."""
    digest = hashlib.sha256(b"fedsim/1/-3/noise/5/2").digest()
    expected = np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(4)
    assert np.array_equal(stream(-3, "noise", 5, 2).bit_generator.random_raw(4), expected)


def uniforms_p_value(sample: npt.NDArray[np.float64]) -> float:
    return float(stats.kstest(sample, stats.uniform.cdf).pvalue)


def normals_p_value(sample: npt.NDArray[np.float64]) -> float:
    return float(stats.kstest(sample, stats.norm.cdf).pvalue)


def test_secret_streams_draw_uniforms() -> None:
    sample = secret_stream().random(100_000)
    assert sample.dtype == np.float64
    assert sample.min() >= 0.0
    assert sample.max() < 1.0
    assert uniforms_p_value(sample) > UNLUCKY
    assert abs(np.corrcoef(sample[:-1], sample[1:])[0, 1]) < 5 / np.sqrt(len(sample))


def test_secret_streams_draw_standard_normals() -> None:
    sample = secret_stream().standard_normal(100_000)
    assert sample.dtype == np.float64
    assert np.isfinite(sample).all()
    assert normals_p_value(sample) > UNLUCKY
    assert abs(np.corrcoef(sample[:-1], sample[1:])[0, 1]) < 5 / np.sqrt(len(sample))


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda sample: 1.05 * sample, id="5 % too wide"),
        pytest.param(lambda sample: sample + 0.05, id="off centre"),
        pytest.param(lambda sample: np.clip(sample, -2.0, 2.0), id="without tails"),
        pytest.param(lambda sample: np.round(sample, 1), id="coarse"),
    ],
)
def test_another_law_is_rejected(wrong: object) -> None:
    assert callable(wrong)
    sample = wrong(secret_stream().standard_normal(100_000))
    assert normals_p_value(sample) < UNLUCKY


def test_secret_streams_are_aes_in_counter_mode() -> None:
    """FIPS 197, Appendix C.1: the block 00112233… under the key 000102…"""
    key = int.from_bytes(bytes(range(16)), "little")
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    drawn = AESCounter(key=key, counter=int.from_bytes(block, "little")).random_raw(2)
    assert drawn.astype("<u8").tobytes().hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


def test_every_secret_stream_has_a_key_of_128_bits_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [5, 6, 5]
    asked: list[int] = []

    def key_of(bits: int) -> int:
        asked.append(bits)
        return keys[len(asked) - 1]

    monkeypatch.setattr("secrets.randbits", key_of)
    first, second, again = (secret_stream().random(1000) for _ in keys)
    assert asked == [128] * 3
    assert np.array_equal(first, again)
    assert not set(first.tolist()) & set(second.tolist())


def test_nothing_is_drawn_of_size_zero() -> None:
    assert secret_stream().random(0).shape == (0,)
    assert secret_stream().standard_normal(0).shape == (0,)


def tail_normal(*uniforms: float) -> float:
    """Return what a generator's normal is when its bits say: tail, and then these uniforms."""
    into_the_tail = (0xFFFFFFFFFFFFF - (1 << 8)) << 9  # layer 0, positive, beyond its rectangle
    words = [into_the_tail, *(int(u * 2.0**53) << 11 for u in uniforms)]
    bits = UserBitGenerator(lambda _state: words.pop(0) if words else 0, 64)
    return float(np.random.Generator(bits).standard_normal())


def test_the_tail_of_secure_normals_has_no_gaps_and_ends_at_twelve_deviations() -> None:
    """Beyond 3.65 a normal is 3.65 - ln(1 - u)/3.65, kept where a second uniform allows it."""
    edge, last = 3.6541528853610088, 1.0 - 2.0**-53
    for value, gap in ((4.0, 1e-14), (7.0, 1e-10), (8.0, 1e-9), (10.0, 1e-6), (12.0, 1e-2)):
        u = float(-np.expm1(-(value - edge) * edge))
        drawn, neighbour = tail_normal(u, last), tail_normal(u + 2.0**-53, last)
        assert drawn == pytest.approx(value, abs=gap)
        assert 0.0 <= neighbour - drawn < gap
    assert tail_normal(last, last, 0.5, last) == tail_normal(0.5, last)  # 13.7 is refused


def test_exponents_fall_by_halves() -> None:
    """Every octave of the tail has the share it should: a right law, and no double counting."""
    sample = np.abs(secret_stream().standard_normal(1_600_000))
    edges = -stats.norm.ppf(2.0 ** -np.arange(1.0, 14.0))
    counts, _ = np.histogram(sample, [*edges, np.inf])
    share = np.array([2.0**-octave for octave in range(1, 13)] + [2.0**-12])
    assert stats.chisquare(counts, share * len(sample)).pvalue > UNLUCKY
    wrong = np.r_[share[:-2], share[-2] * 1.5, share[-1] * 0.5]
    assert stats.chisquare(counts, wrong * len(sample)).pvalue < UNLUCKY
