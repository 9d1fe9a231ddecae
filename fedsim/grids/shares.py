"""Which entries of the parameters each of several workers steps: cut, joined, and in pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch

from fedsim.noise.gaussian import CHUNK
from fedsim.tensors import Tensors

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Span:
    """Entries `start` to `stop` of a flattened parameter; `at` is the first's place in a share."""

    name: str
    start: int
    stop: int
    at: int


@dataclass(frozen=True)
class Shares:
    """One share of the parameters for each worker, in the order of their names, of about one size.

    A parameter is cut at multiples of `CHUNK` alone, so that the noise of each share is that of
    the same entries of the whole. A part of a parameter is flat; a whole one keeps its shape.

    Attributes:
        shapes: of the parameters.
        count: how many workers.
        whole: never cut a parameter: for optimizers that step whole matrices.

    Examples:
        >>> shares = Shares({"a": (3,), "w": (3, CHUNK)}, 2)
        >>> [[(span.name, span.start, span.stop) for span in part] for part in shares.spans]
        [[('a', 0, 3), ('w', 0, 131072)], [('w', 131072, 393216)]]
    """

    shapes: Shapes
    count: int
    whole: bool = field(default=False, kw_only=True)

    @classmethod
    def of(cls, layout: Tensors, count: int, *, whole: bool = False) -> Shares:
        """Return the shares of tensors."""
        shapes = {name: tuple(value.shape) for name, value in layout.items()}
        return cls(shapes, count, whole=whole)

    @cached_property
    def spans(self) -> list[list[Span]]:
        """The parameters, or parts of them, in each share."""
        sizes = {name: math.prod(shape) for name, shape in self.shapes.items()}
        cuts, done = [0], 0  # where a share may begin
        for size in sizes.values():
            cuts += [] if self.whole else range(done + CHUNK, done + size, CHUNK)
            done += size
            cuts.append(done)
        wanted = [done * rank / self.count for rank in range(self.count + 1)]
        bounds = [min(cuts, key=lambda cut: abs(cut - near)) for near in wanted]
        found: list[list[Span]] = []
        for low, high in pairwise(bounds):
            first, inside = 0, []
            for name, size in sizes.items():
                start, stop = max(low - first, 0), min(high - first, size)
                if start < stop:
                    inside.append(Span(name, start, stop, first + start - low))
                first += size
            found.append(inside)
        return found

    def size(self, rank: int) -> int:
        """Return how many entries a share has."""
        return sum(span.stop - span.start for span in self.spans[rank])

    def first_chunks(self, rank: int) -> dict[str, int]:
        """Return the number of the first chunk of each parameter in a share."""
        return {span.name: span.start // CHUNK for span in self.spans[rank]}

    def pieces(self, rank: int, low: int, high: int) -> Iterator[Span]:
        """Yield the entries `low` to `high` of a share; `at` counts from `low`."""
        for span in self.spans[rank]:
            start = max(low - span.at, 0) + span.start
            stop = min(high - span.at + span.start, span.stop)
            if start < stop:
                yield Span(span.name, start, stop, span.at + start - span.start - low)

    def views(self, flat: torch.Tensor, rank: int) -> dict[str, torch.Tensor]:
        """Return the entries of a share that lie end to end, by the names of their parameters."""
        found = {}
        for span in self.spans[rank]:
            part, shape = flat[span.at : span.at + span.stop - span.start], self.shapes[span.name]
            found[span.name] = part.view(shape) if len(part) == math.prod(shape) else part
        return found

    def cut(self, tensors: Tensors, rank: int) -> dict[str, torch.Tensor]:
        """Return a share of the parameters or of an optimizer's state ("parameter/key"), as views.

        A state of another size than its parameter, such as a count, goes to each share.
        """
        mine = {span.name: span for span in self.spans[rank]}
        found = {}
        for path, value in tensors.items():
            name = path if path in self.shapes else path.rpartition("/")[0]
            if (span := mine.get(name)) is not None:
                found[path] = self._part(span, value)
        return found

    def _part(self, span: Span, value: torch.Tensor) -> torch.Tensor:
        size = math.prod(self.shapes[span.name])
        if value.numel() != size or span.stop - span.start == size:
            return value
        return value.reshape(-1)[span.start : span.stop]

    def join(self, parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
        """Return the whole of what `cut` gave in parts, in order of the shares."""
        by_path: dict[str, list[torch.Tensor]] = {}
        for rank, part in enumerate(parts):
            sizes = {span.name: span.stop - span.start for span in self.spans[rank]}
            for path, value in part.items():
                name = path if path in self.shapes else path.rpartition("/")[0]
                found = by_path.setdefault(path, [])
                if not found or value.shape == (sizes[name],):  # a count is in each share
                    found.append(value)
        return {
            path: found[0] if len(found) == 1 else torch.cat(found).view(self._shape(path))
            for path, found in by_path.items()
        }

    def _shape(self, path: str) -> tuple[int, ...]:
        return self.shapes.get(path) or self.shapes[path.rpartition("/")[0]]
