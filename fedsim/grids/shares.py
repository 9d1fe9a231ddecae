"""Divide the parameters among workers: cut them into shares and pieces, and join shares."""

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
    """One share of the parameters for each worker, in the parameters' order, of about equal size.

    Parameters are cut only at multiples of `CHUNK`, so that each share has the noise that its
    entries would have in the whole. A part of a parameter is flat; a whole one keeps its shape.

    Attributes:
        shapes: shapes of the parameters.
        count: number of workers.
        whole: never cut a parameter, for optimizers that step whole matrices.

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
        cuts, done = [0], 0  # possible first entries of a share
        for size in sizes.values():
            cuts += [] if self.whole else range(done + CHUNK, done + size, CHUNK)
            done += size
            cuts.append(done)
        wanted = [done * rank / self.count for rank in range(self.count + 1)]
        bounds = [min(cuts, key=lambda cut: abs(cut - near)) for near in wanted]
        spans: list[list[Span]] = []
        for low, high in pairwise(bounds):
            first, inside = 0, []
            for name, size in sizes.items():
                start, stop = max(low - first, 0), min(high - first, size)
                if start < stop:
                    inside.append(Span(name, start, stop, first + start - low))
                first += size
            spans.append(inside)
        return spans

    def size(self, rank: int) -> int:
        """Return the number of entries of a share."""
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
        """Return views into a flat share, by the names of the parameters."""
        views = {}
        for span in self.spans[rank]:
            part, shape = flat[span.at : span.at + span.stop - span.start], self.shapes[span.name]
            views[span.name] = part.view(shape) if len(part) == math.prod(shape) else part
        return views

    def cut(self, tensors: Tensors, rank: int) -> dict[str, torch.Tensor]:
        """Return a share of the parameters or of an optimizer's state ("parameter/key"), as views.

        A state whose size differs from its parameter's, such as a count, goes to each share.
        """
        mine = {span.name: span for span in self.spans[rank]}
        share = {}
        for path, value in tensors.items():
            name = path if path in self.shapes else path.rpartition("/")[0]
            if (span := mine.get(name)) is not None:
                share[path] = self._part(span, value)
        return share

    def _part(self, span: Span, value: torch.Tensor) -> torch.Tensor:
        size = math.prod(self.shapes[span.name])
        if value.numel() != size or span.stop - span.start == size:
            return value
        return value.reshape(-1)[span.start : span.stop]

    def join(self, parts: Sequence[Tensors]) -> dict[str, torch.Tensor]:
        """Join what `cut` returned; `parts` are in the order of the shares."""
        by_path: dict[str, list[torch.Tensor]] = {}
        for rank, part in enumerate(parts):
            sizes = {span.name: span.stop - span.start for span in self.spans[rank]}
            for path, value in part.items():
                name = path if path in self.shapes else path.rpartition("/")[0]
                pieces = by_path.setdefault(path, [])
                if not pieces or value.shape == (sizes[name],):  # a count is in each share
                    pieces.append(value)
        return {
            path: pieces[0] if len(pieces) == 1 else torch.cat(pieces).view(self._shape(path))
            for path, pieces in by_path.items()
        }

    def _shape(self, path: str) -> tuple[int, ...]:
        return self.shapes.get(path) or self.shapes[path.rpartition("/")[0]]
