"""Streams are functions of their address; the operating system's entropy follows its laws."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fedsim.seeding import Purpose, SystemEntropy, stream

PURPOSES: list[Purpose] = list(get_args(Purpose))
# Addresses that a careless key (a sum, a product, a concatenation without separators) would merge.
ADDRESSES: list[tuple[int, Purpose, int, int]] = [
    *((0, purpose, 0, 0) for purpose in PURPOSES),
    *((seed, "noise", 0, 0) for seed in (1, -1, 11, 2**32, 2**64, 2**64 + 1)),
    *((0, "noise", round, unit) for round, unit in [(0, 1), (1, 0), (1, 1), (1, 11), (11, 1)]),
    (1, "noise", 11, 1),
]
# SystemEntropy is not seeded: a right law fails here once in a million runs.
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


def test_system_entropy_draws_uniforms() -> None:
    sample = SystemEntropy().random(100_000)
    assert sample.dtype == np.float64
    assert sample.min() >= 0.0
    assert sample.max() < 1.0
    assert uniforms_p_value(sample) > UNLUCKY
    assert abs(np.corrcoef(sample[:-1], sample[1:])[0, 1]) < 5 / np.sqrt(len(sample))


def test_system_entropy_draws_standard_normals() -> None:
    sample = SystemEntropy().standard_normal(100_000)
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
    sample = wrong(SystemEntropy().standard_normal(100_000))
    assert normals_p_value(sample) < UNLUCKY


@pytest.mark.parametrize(
    ("byte", "uniform", "normal"),
    [(b"\x00", 0.0, 10.0140), (b"\xff", 1.0 - 2.0**-53, 0.0)],
    ids=["all bits 0", "all bits 1"],
)
def test_extreme_bits_give_finite_normals(
    byte: bytes, uniform: float, normal: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.urandom", lambda size: byte * size)
    assert SystemEntropy().random(2).tolist() == [uniform, uniform]
    assert SystemEntropy().standard_normal(2) == pytest.approx([normal, normal], abs=1e-4)


def test_system_entropy_of_size_zero_is_empty() -> None:
    assert SystemEntropy().random(0).shape == (0,)
    assert SystemEntropy().standard_normal(0).shape == (0,)


def test_the_tail_of_secure_normals_has_neither_gaps_nor_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A word whose eleven coins all fail goes on to a second; 53 bits would end at 8.2."""

    def drawn(word: int, second: int) -> float:
        words = iter([word, second])
        monkeypatch.setattr(
            SystemEntropy,
            "_bits",
            staticmethod(lambda size: np.array([next(words) for _ in range(size)], np.uint64)),
        )
        return float(SystemEntropy().standard_normal(1)[0])

    negative, no_coin, one_coin, next_mantissa = 1, 0, 2, 1 << 12
    assert drawn(negative | one_coin, 0) == pytest.approx(stats.norm.ppf(0.25), rel=1e-12)
    far = drawn(negative | no_coin, 1 << 40)
    assert far == pytest.approx(stats.norm.ppf(2.0 ** -(2 + 11 + 40)), rel=1e-12)
    assert far < -8.1
    assert 0.0 <= drawn(negative | no_coin | next_mantissa, 1 << 40) - far < 1e-14


def test_exponents_fall_by_halves() -> None:
    """Every octave of the tail has the share it should: a right law, and no double counting."""
    sample = np.abs(SystemEntropy().standard_normal(1_600_000))
    edges = -stats.norm.ppf(2.0 ** -np.arange(1.0, 14.0))
    counts, _ = np.histogram(sample, [*edges, np.inf])
    share = np.array([2.0**-octave for octave in range(1, 13)] + [2.0**-12])
    assert stats.chisquare(counts, share * len(sample)).pvalue > UNLUCKY
    wrong = np.r_[share[:-2], share[-2] * 1.5, share[-1] * 0.5]
    assert stats.chisquare(counts, wrong * len(sample)).pvalue < UNLUCKY
