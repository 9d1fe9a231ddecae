"""The noise of earlier rounds, for correlated noise: kept in memory or drawn again.

It is kept in units of a round's standard deviation, so that the clip and the noise may change on a
public schedule (`fedsim.noise.matrix`).

It is never stored. If a round is repeated, or the process was killed, it is drawn again from the
keys of earlier rounds, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from fedsim.noise.gaussian import Chunk, Normals, by_chunks, chunks_of
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix
from fedsim.seeding import NoiseKey
from fedsim.tensors import Tensors, zeros_like


class NoiseMemory:
    """Earlier noise: one float64 copy of the parameters per feedback weight (band or buffer).

    A release of round t calls `before` with t. If the memory holds the same noise up to round
    t - 1, it is used. Otherwise, also after an interrupted release, all rounds before t are drawn
    again.
    """

    def __init__(self) -> None:
        self._of: Hashable = None
        self._round = 0
        self._begun = False  # whether the round was started: only some chunks may have its noise
        self._matrix = INDEPENDENT
        self._past: list[dict[tuple[str, int], torch.Tensor]] = []

    def before(
        self,
        round: int,
        matrix: NoiseMatrix,
        key: Callable[[int], NoiseKey],
        layout: Tensors,
    ) -> NoiseMemory:
        """Return the memory with the noise of all rounds before `round`.

        Args:
            round: the round, from 0.
            matrix: correlates the noise.
            key: returns the noise key of a round.
            layout: tensors with the shapes and devices of the release.
        """
        shapes = tuple((name, tuple(layout[name].shape), layout[name].device) for name in layout)
        of = (matrix, key(0), shapes)
        if self._of != of or self._round != round or self._begun:
            empty = [zeros_like(layout, torch.float64) for _ in matrix.feedback]
            self._past = [
                {(name, number): entries for name, number, entries in chunks_of(each)}
                for each in empty
            ]
            self._of, self._matrix, self._round = None, matrix, 0
            some = zeros_like(layout, torch.float64)
            for _ in range(round):
                noise = key(self._round)

                def draw(chunk: Chunk, normals: Normals, noise: NoiseKey = noise) -> float:
                    self.next_(chunk, normals, noise)
                    return 0.0

                by_chunks(some, draw)
                self.end_round()
        self._of, self._begun = of, True
        return self

    def next_(self, chunk: Chunk, normals: Normals, noise: NoiseKey) -> torch.Tensor:
        """Return and remember this round's noise of a chunk, in units of the round's deviation.

        Call it once per chunk and round.
        """
        matrix, place = self._matrix, (chunk.name, chunk.number)
        past = [each[place] for each in self._past]
        fresh = torch.zeros_like(chunk.entries)
        normals.add_to_(fresh, matrix.amplification, noise.chunk(chunk.name, chunk.number))
        if matrix.decays:
            for weight, buffer in zip(matrix.feedback, past, strict=True):
                fresh.add_(buffer, alpha=-weight)
            for decay, buffer in zip(matrix.decays, past, strict=True):
                buffer.mul_(decay).add_(fresh)
            return fresh
        bands = len(past)
        for back, weight in enumerate(matrix.feedback, start=1):
            fresh.add_(past[(self._round - back) % bands], alpha=-weight)
        past[self._round % bands].copy_(fresh)
        return fresh

    def end_round(self) -> None:
        """Mark this round as complete: every chunk has its noise."""
        self._round += 1
        self._begun = False
