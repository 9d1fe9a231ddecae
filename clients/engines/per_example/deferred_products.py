"""Products of units whose sequences are spread over passes, formed once all passes are done.

Each unit's gradient then is written once, in the cache, over all its passes. Two neighbouring
units are formed together, one to a core: two cores lose a quarter of their speed over one
product of this size, and little over two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from clients.engines.per_example.contributions import Product, Segments, form


class HeldProducts:
    """What per-unit products are made of, pass by pass."""

    def __init__(self, num_units: int) -> None:
        self._formed = [False] * num_units
        self._passes: list[_Pass] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of what is held."""
        return sum(held.num_bytes for held in self._passes)

    def add(self, name: str, product: Product, segments: Segments) -> None:
        """Hold a product of a pass; a pass's products come one after the other."""
        if not self._passes or self._passes[-1].segments is not segments:
            self._passes.append(_Pass(segments))
        self._passes[-1].add(name, product)

    def form(self, buffer: Callable[[str], torch.Tensor]) -> None:
        """Form what is held, onto what was formed before, and hold nothing any more.

        Args:
            buffer: gives (units, *shape) for a parameter.
        """
        steps = list(_steps(self._passes, self._formed))
        for name in dict.fromkeys(name for held in self._passes for name in held.parts):
            gradients = buffer(name)
            for step in steps:
                add = step.add
                for part in step.of.parts.get(name, ()):  # several, where it was used again
                    part.form(gradients, step, add=add)
                    add = True
        self._passes.clear()


class _Pass:
    """The products of one pass.

    Attributes:
        segments: whose sequences are in it.
        starts: each unit's first sequence.
        parts: by parameter.
        num_bytes: of them.
    """

    def __init__(self, segments: Segments) -> None:
        self.segments = segments
        self.starts = [0, *accumulate(segments.counts)]
        self.parts: dict[str, list[_Part]] = {}
        self.num_bytes = 0

    def add(self, name: str, product: Product) -> None:
        self.parts.setdefault(name, []).append(_Part(product))
        self.num_bytes += product.left.nbytes + product.right.nbytes


@dataclass(frozen=True)
class _Step:
    """One product of one pass, or two of the same size.

    Attributes:
        of: the pass.
        unit: the first unit's place in the chunk.
        start: the first unit's first sequence in the pass.
        size: how many sequences.
        apart: from the first unit's sequences to the second one's; 0 where there is one unit.
        add: whether something was formed of the unit before.
    """

    of: _Pass
    unit: int
    start: int
    size: int
    apart: int
    add: bool


def _steps(passes: Sequence[_Pass], formed: list[bool]) -> Iterator[_Step]:
    """Yield how two units after the other two are formed, over all passes.

    What one of the two has more than the other is formed alone.

    Args:
        passes: all.
        formed: whether something of a unit was formed before; changed.
    """
    for first in range(0, len(formed), 2):
        units = range(first, min(first + 2, len(formed)))
        for held in passes:
            counts = held.segments.counts
            both = len(units) == 2 and formed[first] == formed[first + 1]
            common = min(counts[unit] for unit in units) if both else 0
            if common:
                yield _Step(held, first, held.starts[first], common, counts[first], formed[first])
                formed[first] = formed[first + 1] = True
            for unit in units:
                if more := counts[unit] - common:
                    yield _Step(held, unit, held.starts[unit] + common, more, 0, formed[unit])
                    formed[unit] = True


class _Part:
    """The two sides of one pass's products, (positions of all its sequences, size)."""

    def __init__(self, product: Product) -> None:
        self._length = product.left.shape[1]
        self._left, self._right = product.left.flatten(0, 1), product.right.flatten(0, 1)

    def form(self, gradients: torch.Tensor, step: _Step, *, add: bool) -> None:
        """Write a step's products, or add them."""
        unit, start, size = step.unit, step.start * self._length, step.size * self._length
        if step.apart:
            apart = step.apart * self._length
            left, right = (_two(side, start, size, apart) for side in (self._left, self._right))
            form(gradients[unit : unit + 2], left.mT, right, add=add)
        else:  # without a size of one in front: less to call
            rows = slice(start, start + size)
            form(gradients[unit], self._left[rows].T, self._right[rows], add=add)


def _two(side: torch.Tensor, start: int, size: int, apart: int) -> torch.Tensor:
    """Return positions of two units, (2, size, width), without a copy."""
    along, across = side.stride()
    shape, strides = (2, size, side.shape[1]), (apart * along, along, across)
    return side.as_strided(shape, strides, side.storage_offset() + start * along)
