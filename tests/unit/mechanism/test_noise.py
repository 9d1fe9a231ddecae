"""Noise: estimate, noise and grid in one pass, every entry's noise addressed by its place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from fedsim.noise.gaussian import CHUNK, Normals, grid_step, release_
from fedsim.seeding import AesStream, NoiseKey, noise_key, secret_noise_key
from fedsim.tensors import l2_norm

SHAPES = {"b": (9, CHUNK + 7), "a": (5,), "c": (), "none": (0, 4)}  # 4, 4 and 1 chunks at once
KEY = noise_key(5, "noise", 2)
Values = npt.NDArray[np.float64]


def total() -> dict[str, torch.Tensor]:
    return {
        name: torch.arange(1.0, 1.0 + int(np.prod(shape)), dtype=torch.float64).view(shape) / 7.0
        for name, shape in SHAPES.items()
    }


def normals(key: NoiseKey, name: str, chunk: int, size: int) -> Values:
    entries = torch.zeros(size, dtype=torch.float64)
    Normals(size).add_to_(entries, 1.0, key.chunk(name, chunk))
    drawn: Values = entries.numpy()
    return drawn


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)


def test_entries_are_the_estimate_and_their_own_chunks_noise_on_the_grid() -> None:
    step = 2.0**-18  # of 0.37, which is between 2^-2 and 2^-1
    release, _ = release_(total(), 0.2, 0.37, KEY)
    assert list(release) == list(SHAPES)
    for name, value in total().items():
        entries = value.view(-1).numpy()
        for start in range(0, len(entries), CHUNK):
            part = entries[start : start + CHUNK]
            noise = 0.37 * normals(KEY, name, start // CHUNK, len(part))
            expected = np.round((part * 0.2 + noise) / step) * step
            drawn = release[name].view(-1)[start : start + CHUNK].numpy()
            # In a few entries a million the two orders of rounding fall on two neighbours.
            assert np.abs(drawn - expected).max(initial=0.0) <= step
            assert np.mean(drawn != expected) < 1e-4 if len(part) else True


def test_the_norm_is_of_the_estimate_without_its_noise() -> None:
    exact = {name: 0.2 * value for name, value in total().items()}
    for stddev in (0.0, 0.37, 1e5):
        assert release_(total(), 0.2, stddev, KEY)[1] == pytest.approx(l2_norm(exact), rel=1e-12)
    assert release_({}, 0.2, 1.0, KEY) == ({}, 0.0)


def test_a_sum_gives_its_memory_to_the_release() -> None:
    given = total()
    release, _ = release_(given, 0.2, 0.37, KEY)
    assert all(release[name].data_ptr() == value.data_ptr() for name, value in given.items())


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_bits_depend_neither_on_threads_nor_on_the_other_parameters(threads: int) -> None:
    whole, norm = release_(total(), 0.2, 0.37, KEY)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        again, same_norm = release_(dict(reversed(total().items())), 0.2, 0.37, KEY)
    finally:
        torch.set_num_threads(before)
    assert same(whole, dict(reversed(again.items())))
    assert norm == same_norm
    assert same({"b": whole["b"]}, release_({"b": total()["b"]}, 0.2, 0.37, KEY)[0])


def test_no_noise_is_the_estimate_and_draws_nothing() -> None:
    class Silent(NoiseKey):
        def chunk(self, parameter: str, index: int) -> AesStream:
            raise AssertionError

    release, _ = release_(total(), 0.2, 0.0, Silent(b""))
    assert same(release, {name: value * 0.2 for name, value in total().items()})


def test_chunks_are_independent_of_each_other() -> None:
    """Chunks of one parameter, of another, of another round: no correlation at any lag to 3."""
    size = 20_000
    places = [(KEY, "w", 0), (KEY, "w", 1), (KEY, "w1", 0), (KEY, "w", 11), (KEY, "w/1", 1)]
    places += [(noise_key(5, "noise", 3), "w", 0), (noise_key(6, "noise", 2), "w", 0)]
    places += [(noise_key(5, "clip", 2), "w", 0), (secret_noise_key(), "w", 0)]
    drawn = [normals(*place, size) for place in places]
    for number, one in enumerate(drawn):
        for other in drawn[:number]:
            for lag in range(-3, 4):
                product = np.roll(one, lag) @ other
                assert abs(product) < 5.5 * math.sqrt(size)
    assert len(np.unique(np.concatenate(drawn))) == size * len(drawn)
    # Power: a tenth of one in the other would be seen.
    assert (drawn[0] + 0.1 * drawn[1]) @ drawn[1] > 5.5 * math.sqrt(size)


def test_the_tails_of_a_release_hold_what_they_should() -> None:
    """Twenty million entries: counts beyond 3, 4, 5 deviations, and no more beyond 7."""
    size = 20_000_000
    noise = release_({"w": torch.zeros(size, dtype=torch.float64)}, 1.0, 1.0, KEY)[0]["w"].numpy()
    far = np.abs(noise)
    for deviations in (2.0, 3.0, 4.0, 5.0):
        expected = 2.0 * stats.norm.sf(deviations) * size
        count = int(np.count_nonzero(far > deviations))
        assert stats.binomtest(count, size, expected / size).pvalue > 1e-6
        if expected > 1000:  # a tail that is a fifth too light or too heavy is seen
            assert stats.binomtest(int(0.8 * count), size, expected / size).pvalue < 1e-6
    assert far.max() < 7.0
    assert abs(noise.mean()) < 5.5 / math.sqrt(size)
    assert abs(noise.var() - 1.0) < 5.5 * math.sqrt(2.0 / size)


class Given(AesStream):
    """Gives these words, and these uniforms where more bits are asked for."""

    def __init__(self, words: list[int], more: list[float] | None = None) -> None:
        self.given, self.more = words, more or []

    def words(self, count: int, room: npt.NDArray[np.uint64] | None = None) -> Any:  # noqa: ANN401
        assert count == len(self.given)
        return np.array(self.given, dtype=np.uint64)

    def random(self, size: int) -> Values:
        assert size == len(self.more)
        return np.array(self.more)


def pair(radius: int, angle: int, *more: float) -> tuple[float, float]:
    entries = torch.zeros(2, dtype=torch.float64)
    Normals(2).add_to_(entries, 1.0, Given([radius % 2**64, angle % 2**64], list(more)))
    return float(entries[0]), float(entries[1])


def test_a_pair_is_box_and_mullers() -> None:
    for radius in (2**62, -(2**61), 2**63 - 1, -(2**63), 2**44 + 12345):
        for angle in (0, 1, 2**62, -(2**62), -(2**63), 123 * 2**55):
            u, theta = abs(radius) / 2**63, math.pi * angle / 2**63
            length = math.sqrt(-2.0 * math.log(u))
            expected = (length * math.cos(theta), length * math.sin(theta))
            assert pair(radius, angle) == pytest.approx(expected, rel=1e-13, abs=1e-13)


def test_the_tail_has_no_gaps_and_ends_at_twelve_deviations() -> None:
    """Where 63 bits would be coarse, 53 more say where between two words the uniform is."""
    for word in (5, 0, -1, 2**42, -(2**42) - 1):
        place = word if word >= 0 else -1 - word
        lengths = [pair(word, 0, more)[0] for more in (0.0, 0.25, 1.0 - 2.0**-53)]
        u = [(place + part) / 2**63 for part in (1.0, 0.75, 2.0**-53)]
        assert lengths == pytest.approx([math.sqrt(-2.0 * math.log(x)) for x in u], rel=1e-12)
        # The next word begins where this one ends.
        after = place + 1 if word >= 0 else -2 - place
        assert pair(after, 0, 1.0 - 2.0**-53)[0] == pytest.approx(lengths[0], abs=1e-9)
    assert 12.6 < pair(0, 0, 1.0 - 2.0**-53)[0] < 12.8


@pytest.mark.parametrize("stddev", [3e-7, 0.02, 0.25, 1.0, 1.9, 5e4])
def test_a_release_is_on_the_grid_whatever_was_estimated(stddev: float) -> None:
    """Low bits tell of the two that were added; without the grid most sums have some."""
    step = grid_step(stddev)
    assert 2.0**-17 < step / stddev <= 2.0**-16
    for start in (0.0, 1.0 / 3.0, 7e-6 * stddev):
        given = {"w": torch.full((1000,), start, dtype=torch.float64)}
        exact = start + stddev * normals(KEY, "w", 0, 1000)
        noised = release_(given, 1.0, stddev, KEY)[0]["w"].numpy()
        assert np.array_equal(np.round(noised / step), noised / step)
        assert np.mean(exact / step == np.round(exact / step)) < 0.01
        assert np.abs(noised - exact).max() <= 0.500001 * step


@pytest.mark.parametrize("stddev", [-1.0, float("nan"), float("inf"), 1e-300])
def test_a_scale_that_is_none_is_refused(stddev: float) -> None:
    given = total()
    with pytest.raises(ValueError, match="stddev = "):
        release_(given, 0.2, stddev, KEY)
    assert same(given, total())
