"""Gaussian noise on an estimate, rounded to a grid; and the margin for rounded sums.

How far rounding lets one unit move a sum beyond its own clipped update, as the noise covers it:
A unit adds at most the clip's bound S. But float32 sums are rounded, and how the others' updates
are rounded depends on who is there. What the noise is scaled to is therefore not S but
S·(1 + `rounding_share(W)`), W the weight of all units in the sum: 2⁻¹⁸·W, or 0.04 % for W = 100.
The share is of two sums, with and without the unit. Three parts, u = 2⁻²⁴:

- *Proved*: 50u·W. The engine `materialised` adds clipped rows in float32, where a term is rounded
  24 times at most, each 128 rows (`sum_of_rows` in `clipped_sums`). So does `ghost` with units of
  many positions. A worker's sum is rounded to float32 once more before it travels. So either sum is
  within 25u·W·S of the exact one. All else, across chunks, shards and nodes, and from the first
  unit on in local training, the engines `loop` and `vmap` and under Flower, is added in float64:
  that rounds by n·2⁻⁵³·W·S at most for n units.
- *Measured, not proved*: the other 14u·W are for what has no proved bound. `ghost` adds the other
  units by one matrix product over the positions of all; any order of summation is allowed to be off
  by as many u as there are positions, times lengths that may exceed S. And the last bits of
  every unit's own gradient depend on the shape of the pass that computed it.
  `tests/privacy/test_engine_sensitivity.py` measures both, several hundred units that a newcomer
  shifts from one chunk and pass to another, the units all alike (so that all are off the same way)
  or all different.
- *Not covered*: steps. A unit whose numbers are not finite for the padding that another brings, or
  whose ghost norm is just where pairs become too inexact, is computed in another way, with a
  margin of the clip that differs by 10⁻⁴ at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fedsim.seeding import AesStream, NoiseKey
from fedsim.tensors import Tensors, one_thread_an_operation

CHUNK = 2**17
"""Entries of a parameter whose noise comes from one stream: 1 MiB of float64."""

_SMALL = 2.0**-20  # uniforms below have more bits

GRID_BITS = 16
"""A release is a multiple of a power of two that is this many bits below the noise's deviation."""

_SHARE = 2.0**-18  # of the bound, a unit of weight
_LOG_RARE = 20.0 * math.log(10.0)  # sums of more weight than `most_weight` are rarer than 1e-20
_LEAST = 2.0**-900  # below, a step of the grid would be no float64


def release_(
    total: Tensors, factor: float, stddev: float, noise: NoiseKey
) -> tuple[dict[str, torch.Tensor], float]:
    """Return factor * total + N(0, stddev²) for every entry, and the norm without the noise.

    Entries are rounded to a multiple of `grid_step(stddev)`. The sum of two floats has low bits
    that tell of both (Mironov 2012; Haney et al. 2022); a multiple of the step has none, and each
    stands for more than 2^30 values of the noise, whose holes it covers. Rounding what is released
    costs no privacy, and adds a 2^-36th of the noise's variance at most.

    Estimate, norm, noise and grid are computed chunk by chunk, in float64 on the device of the
    total, by as many threads as torch has. A chunk has a stream of its own, so the noise of an
    entry depends on `noise` and on where the entry stands, on nothing else.

    Args:
        total: float64. What lies on the CPU is overwritten by the release: at the size of a whole
            model a second copy would count.
        factor: what makes the sum an estimate, from `Estimator.factor`.
        stddev: 0 adds no noise and rounds nothing; negative, NaN, infinite or below 2^-900 is a
            `ValueError`, and `total` is as it was.
        noise: where normals come from.

    Returns:
        The release, float64, in the layout and on the devices of `total`; and the L2 norm of
        factor * total.

    Examples:
        >>> from fedsim.seeding import noise_key
        >>> key = noise_key(0, "noise", 0)
        >>> release, norm = release_({"w": torch.ones(10_000).double()}, 0.1, 2.0, key)
        >>> abs(float(release["w"].std()) - 2.0) < 0.1, round(norm, 6)
        (True, 10.0)
    """
    step = grid_step(stddev) if stddev else 1.0
    release = {name: value.to(torch.float64).contiguous() for name, value in total.items()}
    chunks = [
        _Chunk(name, number, entries)
        for name in sorted(release)
        for number, entries in enumerate(torch.split(release[name].view(-1), CHUNK))
        if len(entries)
    ]
    threads = torch.get_num_threads()

    def work(of_a_thread: Sequence[_Chunk]) -> list[float]:
        normals = Normals(max((len(chunk.entries) for chunk in of_a_thread), default=0))
        lengths = []
        for name, number, entries in of_a_thread:
            entries.mul_(factor / step)  # a power of two: exact
            lengths.append(float(torch.linalg.vector_norm(entries)))
            if stddev:
                normals.add_to_(entries, stddev / step, noise.chunk(name, number))
                entries.round_().mul_(step)
        return lengths

    if sum(len(chunk.entries) for chunk in chunks) <= CHUNK:
        lengths = work(chunks)
    else:
        with one_thread_an_operation(), ThreadPoolExecutor(threads) as pool:
            shares = [chunks[first::threads] for first in range(threads)]
            lengths = [length for share in pool.map(work, shares) for length in share]
    return release, math.hypot(*sorted(lengths)) * step


class _Chunk(NamedTuple):
    name: str
    number: int
    entries: torch.Tensor


class Normals:
    """Normals by the transform of Box & Muller (1958), a chunk of them at a time.

    √(-2 ln u)·(cos θ, sin θ): 63 random bits for u in (0, 1] and 64 for the angle. Where u is below
    2^-20 it has 53 bits more: the tails have no gaps, and end at 12.7 standard deviations. With
    vector instructions it takes half of the time of numpy's ziggurat. Logarithm and cosine are
    torch's, right to one unit in the last place, and may differ by that between kinds of
    processors: on the grid that shows in one entry in 2^30.

    Args:
        most: of the entries that are to be added to at once.
    """

    def __init__(self, most: int) -> None:
        half = (most + 1) // 2
        self._words = np.empty(2 * half + AesStream.SPARE, dtype=np.uint64)  # new memory is slow
        self._uniforms = torch.empty(3, half, dtype=torch.float64)

    def add_to_(self, entries: torch.Tensor, stddev: float, stream: AesStream) -> None:
        """Add a normal of deviation `stddev` to each of (n,) float64, n at most `most`.

        The uniforms are made on the CPU, the rest is computed on the device of `entries`.
        """
        half, rest = (len(entries) + 1) // 2, len(entries) // 2
        words = stream.words(2 * half, self._words).view(np.int64)  # unsigned ones convert slowly
        there = self._uniforms[:, :half]
        np.copyto(there[:2].numpy(), words.reshape(2, half))
        there[0].abs_().mul_(2.0**-63)
        if float(there[0].min()) < _SMALL:
            _refine_(there[0].numpy(), words[:half], stream)
        radius, angle, cosine = there.to(entries.device)
        radius.log_().mul_(-2.0 * stddev**2).sqrt_()
        torch.cos(angle.mul_(math.pi * 2.0**-63), out=cosine)
        entries[:half].addcmul_(radius, cosine)
        entries[half:].addcmul_(radius[:rest], angle.sin_()[:rest])


def _refine_(
    uniforms: npt.NDArray[np.float64], words: npt.NDArray[np.int64], stream: AesStream
) -> None:
    small = np.flatnonzero(uniforms < _SMALL)
    coarse = words[small] ^ (words[small] >> 63)  # -1 - word for a negative one: from 0 on
    uniforms[small] = (coarse + (1.0 - stream.random(len(small)))) * 2.0**-63


def grid_step(stddev: float) -> float:
    """Return the power of two, 2^-16 to 2^-17 times the deviation, that releases are rounded to.

    Raises:
        ValueError: the deviation is not in [2^-900, inf).
    """
    if not _LEAST <= stddev < math.inf:
        raise ValueError(f"stddev = {stddev}: must be finite, and 0 or at least {_LEAST:.0e}")
    _, exponent = math.frexp(stddev)
    return math.ldexp(1.0, exponent - 1 - GRID_BITS)


def rounding_share(weight: float) -> float:
    """Return the share of the bound by which a unit moves the rounding of so much weight.

    Examples:
        >>> f"{rounding_share(1000.0):.2g}"
        '0.0038'
    """
    return _SHARE * weight


def most_weight(expected: float, total: float) -> float:
    """Return what the weight of a round's units exceeds with probability 1e-20 at most.

    Bernstein's inequality for independent weights in [0, 1] and coins: over μ + t with probability
    exp(-t²/(2μ + 2t/3)) at most. It holds for a cohort of a fixed size, drawn without
    replacement, too (Hoeffding 1963, Theorem 4), and a cap only makes the weight smaller.

    Args:
        expected: μ.
        total: of all units, drawn or not.

    Examples:
        >>> round(most_weight(100.0, 10_000.0), 2)
        212.54
        >>> most_weight(100.0, 100.0)
        100.0
    """
    third = _LOG_RARE / 3.0
    return min(total, expected + third + math.sqrt(third**2 + 2.0 * _LOG_RARE * expected))
