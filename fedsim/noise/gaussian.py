"""Gaussian noise on an estimate, rounded to a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fedsim.seeding import AesStream, NoiseKey
from fedsim.tensors import Tensors, by_threads

if TYPE_CHECKING:
    from fedsim.noise.memory import NoiseMemory

Result = TypeVar("Result")

CHUNK = 2**17
"""Entries of a parameter whose noise comes from one stream: 1 MiB of float64."""

# Chunks that a thread takes at once. Two threads were a fifth faster with four than with one and a
# tenth slower with eight; sixteen, which wait for each other's Python, were fastest with eight.
_FEW, _MANY = 4, 8

_SMALL = 2.0**-20  # uniforms below have more bits

GRID_BITS = 16
"""A release is a multiple of a power of two that is this many bits below the noise's deviation."""

_LEAST = 2.0**-900  # below, a step of the grid would be no float64


def release_(
    total: Tensors,
    factor: float,
    stddev: float,
    noise: NoiseKey,
    earlier: NoiseMemory | None = None,
) -> tuple[dict[str, torch.Tensor], float]:
    """Return factor * total + N(0, stddev²) for every entry, and the norm without the noise.

    Entries are rounded to a multiple of `grid_step(stddev)`. The sum of two floats has low bits
    that tell of both (Mironov 2012; Haney et al. 2022); a multiple of the step has none, and each
    stands for more than 2^30 values of the noise, whose holes it covers. Rounding what is released
    costs no privacy, and adds a 2^-36th of the noise's variance at most.

    Estimate, norm, noise and grid are computed chunk by chunk, in float64 on the device of the
    total, by threads. A chunk has a stream of its own, so the noise of an entry depends on `noise`
    and on where the entry stands, on nothing else.

    Args:
        total: float64. What lies on the CPU is overwritten by the release: at the size of a whole
            model a second copy would count.
        factor: what makes the sum an estimate, from `Estimator.factor`.
        stddev: 0 adds no noise and rounds nothing; negative, NaN, infinite or below 2^-900 is a
            `ValueError`, and `total` is as it was.
        noise: where normals come from.
        earlier: the noise of the rounds before, which this round's takes back in part.

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

    def add_noise_(chunk: Chunk, normals: Normals) -> list[float]:
        entries = chunk.entries
        entries.mul_(factor / step)  # a power of two: exact
        lengths: list[float] = torch.linalg.vector_norm(by_stream(entries), dim=1).tolist()
        if stddev:
            if earlier is None:
                normals.add_to_(entries, stddev / step, *chunk.streams(noise))
            else:
                entries.add_(earlier.next_(chunk, normals, noise), alpha=stddev / step)
            entries.round_().mul_(step)
        return lengths

    together = 1 if earlier is not None else _together(release)
    lengths = chain.from_iterable(by_chunks(release, add_noise_, together))
    if earlier is not None and stddev:
        earlier.end_round()
    return release, math.hypot(*sorted(lengths)) * step


class Chunk(NamedTuple):
    """Some entries of a parameter, a view: their noise comes from one stream.

    Or those of some whole chunks in a row, from the one with this number on.
    """

    name: str
    number: int
    entries: torch.Tensor

    def streams(self, noise: NoiseKey) -> list[AesStream]:
        """Return the stream of each chunk."""
        count = len(by_stream(self.entries))
        return [
            noise.chunk(self.name, number) for number in range(self.number, self.number + count)
        ]


def by_stream(entries: torch.Tensor) -> torch.Tensor:
    """Return the entries of a chunk, or of some whole ones in a row, as (streams, of each)."""
    return entries.view(max(1, len(entries) // CHUNK), -1)


def chunks_of(tensors: Tensors, together: int = 1) -> list[Chunk]:
    """Return the chunks of contiguous tensors, by name and number; so many whole ones in one."""
    found = []
    for name in sorted(tensors):
        flat = tensors[name].view(-1)
        whole = len(flat) // CHUNK * CHUNK
        parts = [*torch.split(flat[:whole], together * CHUNK), flat[whole:]]
        starts = accumulate((len(part) for part in parts), initial=0)
        found += [
            Chunk(name, start // CHUNK, part)
            for start, part in zip(starts, parts, strict=False)
            if len(part)
        ]
    return found


def _together(tensors: Tensors) -> int:
    """Return how many chunks a thread is to take at once, so that all threads have some."""
    threads = torch.get_num_threads()
    share = sum(value.numel() for value in tensors.values()) // (CHUNK * threads)
    return max(1, min(share, _MANY, max(_FEW, threads // 2)))


def by_chunks(
    tensors: Tensors, work: Callable[[Chunk, Normals], Result], together: int = 1
) -> list[Result]:
    """Return what `work` returns for each chunk, by threads; see `by_threads`.

    Args:
        tensors: contiguous.
        work: from a chunk.
        together: whole chunks that are one.
    """
    chunks = chunks_of(tensors, together)
    entries = sum(len(chunk.entries) for chunk in chunks)

    def of_a_thread(share: Sequence[Chunk]) -> list[Result]:
        most = max((len(chunk.entries) for chunk in share), default=0)
        normals = Normals(most, of_gpu=any(chunk.entries.is_cuda for chunk in share))
        return [work(chunk, normals) for chunk in share]

    return list(chain.from_iterable(by_threads(of_a_thread, chunks, entries)))


class Normals:
    """Normals by the transform of Box & Muller (1958), a chunk of them at a time.

    √(-2 ln u)·(cos θ, sin θ): 63 random bits for u in (0, 1] and 64 for the angle. Where u is below
    2^-20 it has 53 bits more: the tails have no gaps, and end at 12.7 standard deviations. With
    vector instructions it takes half of the time of numpy's ziggurat. Logarithm and cosine are
    torch's, right to one unit in the last place, and may differ by that between kinds of
    processors: on the grid that shows in one entry in 2^30.

    Args:
        most: of the entries that are to be added to at once.
        of_gpu: whether some lie on a GPU, which reads locked memory several times as fast.
    """

    def __init__(self, most: int, *, of_gpu: bool = False) -> None:
        half = (most + 1) // 2
        self._words = np.empty(2 * half + AesStream.SPARE, dtype=np.uint64)  # new memory is slow
        self._uniforms = torch.empty(2, half, dtype=torch.float64, pin_memory=of_gpu)
        self._cosines = torch.empty(half, dtype=torch.float64)

    def add_to_(self, entries: torch.Tensor, stddev: float, *streams: AesStream) -> None:
        """Add a normal of deviation `stddev` to each of (n,) float64, n at most `most`.

        The uniforms are made on the CPU, the rest is computed on the device of `entries`.

        Args:
            entries: as many for each stream.
            stddev: of the normals.
            streams: where their bits are from.
        """
        rows = entries.view(len(streams), -1)
        half, rest = (rows.shape[1] + 1) // 2, rows.shape[1] // 2
        there = self._uniforms[:, : len(streams) * half].view(2, len(streams), half)
        words = [  # unsigned ones convert slowly; each overwrites the spare of the last
            stream.words(2 * half, self._words[2 * half * number :]).view(np.int64)
            for number, stream in enumerate(streams)
        ]
        for number, own in enumerate(words):
            np.copyto(there[:, number].numpy(), own.reshape(2, half))
        there[0].abs_().mul_(2.0**-63)
        for number, least in enumerate(there[0].amin(dim=1).tolist()):
            if least < _SMALL:
                _refine_(there[0, number].numpy(), words[number][:half], streams[number])
        radius, angle = there.to(entries.device)
        room = self._cosines[: angle.numel()].view_as(angle) if entries.is_cpu else None
        radius.log_().mul_(-2.0 * stddev**2).sqrt_()
        cosine = torch.cos(angle.mul_(math.pi * 2.0**-63), out=room)
        rows[:, :half].addcmul_(radius, cosine)
        rows[:, half:].addcmul_(radius[:, :rest], angle.sin_()[:, :rest])


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
