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
"""Number of entries whose noise comes from one stream: 1 MiB of float64."""

# Chunks that a thread takes at once. Two threads were fastest with four. Sixteen threads, which
# wait for the GIL, were fastest with eight.
_FEW, _MANY = 4, 8

_SMALL = 2.0**-20  # uniforms below this get more bits

GRID_BITS = 16
"""A release is a multiple of a power of two, this many bits below the noise's deviation."""

_LEAST = 2.0**-900  # for a smaller deviation, a grid step would not fit in a float64


def release_(
    total: Tensors,
    factor: float,
    stddev: float,
    noise: NoiseKey,
    earlier: NoiseMemory | None = None,
) -> tuple[dict[str, torch.Tensor], float]:
    """Return factor * total + N(0, stddev²) for every entry, and the norm before noise.

    Entries are rounded to a multiple of `grid_step(stddev)`. The low bits of a float sum reveal
    both summands (Mironov 2012; Haney et al. 2022). A multiple of the step has no such bits. It
    stands for more than 2^30 values of the noise, and so covers gaps between them. Rounding a
    release costs no privacy and adds at most 2^-36 of the noise's variance.

    Threads compute estimate, norm, noise and grid chunk by chunk, in float64 on the device of the
    total. Each chunk has its own stream, so the noise of an entry depends only on `noise` and on
    the entry's position.

    Args:
        total: float64. Tensors on the CPU are overwritten by the release, to save a copy of the
            model.
        factor: factor from `Estimator.factor` that turns the sum into an estimate.
        stddev: standard deviation of the noise. 0 adds no noise and does not round. Negative, NaN,
            infinite or below 2^-900 raises `ValueError` and leaves `total` unchanged.
        noise: key of the normals.
        earlier: noise of earlier rounds, to be subtracted in part.

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
    """A view of the entries of one or more consecutive chunks of a parameter.

    The noise of each chunk comes from one stream; `number` is that of the first chunk.
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
    """Return the entries of one or more chunks, shaped (chunks, entries of each)."""
    return entries.view(max(1, len(entries) // CHUNK), -1)


def chunks_of(tensors: Tensors, together: int = 1) -> list[Chunk]:
    """Return the chunks of contiguous tensors by name and number, `together` whole ones in one."""
    chunks = []
    for name in sorted(tensors):
        flat = tensors[name].view(-1)
        whole = len(flat) // CHUNK * CHUNK
        parts = [*torch.split(flat[:whole], together * CHUNK), flat[whole:]]
        starts = accumulate((len(part) for part in parts), initial=0)
        chunks += [
            Chunk(name, start // CHUNK, part)
            for start, part in zip(starts, parts, strict=False)
            if len(part)
        ]
    return chunks


def _together(tensors: Tensors) -> int:
    """Return how many chunks a thread takes at once, so that all threads have work."""
    threads = torch.get_num_threads()
    share = sum(value.numel() for value in tensors.values()) // (CHUNK * threads)
    return max(1, min(share, _MANY, max(_FEW, threads // 2)))


def by_chunks(
    tensors: Tensors, work: Callable[[Chunk, Normals], Result], together: int = 1
) -> list[Result]:
    """Return the results of `work` for all chunks, computed by threads; see `by_threads`.

    Args:
        tensors: contiguous tensors.
        work: function of a chunk and a generator of normals.
        together: number of whole chunks in one call.
    """
    chunks = chunks_of(tensors, together)
    entries = sum(len(chunk.entries) for chunk in chunks)

    def of_a_thread(share: Sequence[Chunk]) -> list[Result]:
        max_entries = max((len(chunk.entries) for chunk in share), default=0)
        normals = Normals(max_entries, of_gpu=any(chunk.entries.is_cuda for chunk in share))
        return [work(chunk, normals) for chunk in share]

    return list(chain.from_iterable(by_threads(of_a_thread, chunks, entries)))


class Normals:
    """Normals by the transform of Box & Muller (1958), one chunk at a time.

    √(-2 ln u)·(cos θ, sin θ) with 63 random bits for u in (0, 1] and 64 for the angle. If u is
    below 2^-20, it gets 53 more bits: the tails have no gaps and end at 12.7 standard deviations.
    With vector instructions this takes half the time of numpy's ziggurat. Torch's logarithm and
    cosine are exact to one unit in the last place and may differ by it between processor types.
    On the grid, this changes one entry in 2^30.

    Args:
        max_entries: maximum number of entries in one call of `add_to_`.
        of_gpu: whether some entries are on a GPU, which reads page-locked memory several times as
            fast.
    """

    def __init__(self, max_entries: int, *, of_gpu: bool = False) -> None:
        half = (max_entries + 1) // 2
        self._words = np.empty(2 * half + AesStream.SPARE, dtype=np.uint64)  # reused: it is faster
        self._uniforms = torch.empty(2, half, dtype=torch.float64, pin_memory=of_gpu)
        self._cosines = torch.empty(half, dtype=torch.float64)

    def add_to_(self, entries: torch.Tensor, stddev: float, *streams: AesStream) -> None:
        """Add a normal of standard deviation `stddev` to each entry.

        Uniforms are drawn on the CPU; the rest is computed on the device of `entries`.

        Args:
            entries: (n,) float64, n at most `max_entries`, divided evenly among the streams.
            stddev: standard deviation of the normals.
            streams: sources of the random bits.
        """
        rows = entries.view(len(streams), -1)
        half, rest = (rows.shape[1] + 1) // 2, rows.shape[1] // 2
        there = self._uniforms[:, : len(streams) * half].view(2, len(streams), half)
        words = [  # signed, as unsigned converts slowly; each overwrites the spare of the last
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
    coarse = words[small] ^ (words[small] >> 63)  # a negative word becomes -1 - word, >= 0
    uniforms[small] = (coarse + (1.0 - stream.random(len(small)))) * 2.0**-63


def grid_step(stddev: float) -> float:
    """Return the grid step of releases: a power of two, 2^-17 to 2^-16 times the deviation.

    Raises:
        ValueError: `stddev` is not in [2^-900, inf).
    """
    if not _LEAST <= stddev < math.inf:
        raise ValueError(f"stddev = {stddev}: must be finite, and 0 or at least {_LEAST:.0e}")
    _, exponent = math.frexp(stddev)
    return math.ldexp(1.0, exponent - 1 - GRID_BITS)
