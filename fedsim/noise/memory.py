"""The noise of earlier rounds, from which the next round's is made: kept, or made anew.

It is kept in units of a round's deviation, so that a clip, and the noise with it, may change on a
public schedule: `fedsim.noise.matrix`.

Nothing of it is stored. What a process needs it makes anew from the keys of the rounds before, to
the same bits: after a kill, for another run, or when a round is done again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch

from fedsim.noise.gaussian import Chunk, Normals, by_chunks, chunks_of
from fedsim.noise.matrix import INDEPENDENT, NoiseMatrix
from fedsim.seeding import NoiseKey
from fedsim.tensors import Tensors, zeros_like


class NoiseMemory:
    """What correlated noise remembers: one float64 copy of the parameters a band or buffer.

    A release of round t asks for `before(t)`. If the last round released was t - 1 of the same
    noise, it is there; else all rounds before t are drawn again, in as many passes: also where a
    release was broken off.
    """

    def __init__(self) -> None:
        self._of: Hashable = None
        self._round = 0
        self._begun = False  # the round, so that some chunks have its noise and others not yet
        self._matrix = INDEPENDENT
        self._past: list[dict[tuple[str, int], torch.Tensor]] = []

    def before(
        self,
        round: int,
        matrix: NoiseMatrix,
        key: Callable[[int], NoiseKey],
        layout: Tensors,
    ) -> NoiseMemory:
        """Return the memory as it is before a round's noise is drawn.

        Args:
            round: the round, from 0.
            matrix: correlates the noise.
            key: of a round's noise.
            layout: tensors of the shapes and devices of the release.
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
        """Return this round's noise of a chunk, in deviations of the round, and remember it.

        Once a chunk and round.
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
        """Say that every chunk of this round has its noise."""
        self._round += 1
        self._begun = False
