"""Terms of per-unit gradients: the part of each unit's gradient from one use of a parameter.

A term is a product (for a weight), a sum over positions (for a bias), or rows (for a lookup table).
A unit's gradient is the sum of its terms over all uses, layers and passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol, Self

import torch

from fedsim.clients.engines.clipped_sums import block_squares
from fedsim.clients.models.gpu_kernels import aligned, readable, sent
from fedsim.tensors import Tensors


def write_product(out: torch.Tensor, left: torch.Tensor, right: torch.Tensor, *, add: bool) -> None:
    """Write left @ right into `out`, or add it to `out`.

    With mixed precision one side is bfloat16 and the other may hold numbers rounded to it. A GPU
    then multiplies in bfloat16, and sums and writes in float32. A CPU has no such product, so both
    sides are widened. In both cases `out` keeps its type, and norms are computed from `out`.

    Args:
        out: (units, rows, columns), or (rows, columns) for one unit, which has less overhead.
        left: (units, rows, positions), or (rows, positions).
        right: (units, positions, columns), or (positions, columns).
        add: whether to add to `out` instead of overwriting it.
    """
    multiply, add_product = (torch.mm, out.addmm_) if out.dim() == 2 else (torch.bmm, out.baddbmm_)
    if left.dtype == right.dtype == out.dtype:
        if add:
            add_product(left, right)
        else:
            multiply(left, right, out=out)
    elif out.device.type == "cuda":
        low = min(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)
        left, right = aligned(left.to(low)), aligned(right.to(low))
        for rows in readable(left):
            own = out[..., rows, :]
            if add:
                own += multiply(left[..., rows, :], right, out.dtype)
            else:
                multiply(left[..., rows, :], right, out.dtype, out=own)
    else:
        write_product(out, left.to(out.dtype), right.to(out.dtype), add=add)


@dataclass(frozen=True)
class Segment:
    """Neighbouring units with the same number of sequences in a pass.

    Attributes:
        units: their positions in the chunk.
        rows: the positions of their sequences in the pass.
    """

    units: slice
    rows: slice

    @property
    def num_units(self) -> int:
        """Number of units."""
        return int(self.units.stop - self.units.start)

    def part(self, start: int, stop: int) -> Segment:
        """Return the segment's units from number `start` up to `stop`."""
        count = (self.rows.stop - self.rows.start) // self.num_units
        units = slice(self.units.start + start, self.units.start + stop)
        first = self.rows.start
        return Segment(units, slice(first + start * count, first + stop * count))


class Segments:
    """The units of a pass's sequences; the sequences are in the order of the units.

    Attributes:
        counts: each unit's number of sequences in the pass.
        whole: whether this pass has all sequences of its units.
    """

    def __init__(self, counts: Sequence[int], *, whole: bool) -> None:
        self.num_units = len(counts)
        self.counts = list(counts)
        self.whole = whole
        self._segments: list[Segment] = []
        self._unit_of_row: torch.Tensor | None = None
        unit = row = 0
        for count, run in groupby(counts):
            stop = unit + len(list(run))
            last = row + (stop - unit) * count
            if count:
                self._segments.append(Segment(slice(unit, stop), slice(row, last)))
            unit, row = stop, last

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def unit_of_row(self, device: torch.device) -> torch.Tensor:
        """Return the unit that each sequence belongs to: (rows,) int64."""
        if self._unit_of_row is None:  # computed once for all layers
            units = torch.arange(self.num_units).repeat_interleave(torch.tensor(self.counts))
            self._unit_of_row = sent(units, device)
        return self._unit_of_row


def by_unit(values: torch.Tensor, segment: Segment) -> torch.Tensor:
    """Return (units, positions of all their sequences, size), as a view if strides allow."""
    part = values[segment.rows]
    return part.reshape(segment.num_units, -1, part.shape[-1])


Change = Callable[[torch.Tensor], torch.Tensor]


class Chain(Protocol):
    """Chain rule of a parameter that is used in a changed form, such as with rows of norm 1.

    A linear map, in place and row by row, from the gradient of the used form to the gradient of the
    parameter. It applies to one unit's gradient or to a sum over units.
    """

    def __call__(self, gradient: torch.Tensor) -> None:
        """Change a gradient, in place."""
        ...

    def __getitem__(self, part: int | slice) -> Chain:
        """Return the map for some rows, or for one parameter of a stack."""
        ...


@dataclass(frozen=True, eq=False)
class _Tensors:
    """Base of terms: operations on all tensors of a term."""

    def map(self, change: Change) -> Self:
        """Return the term with `change` applied to every tensor, such as a slice of sequences."""
        tensors = {k: v for k, v in vars(self).items() if isinstance(v, torch.Tensor)}
        return replace(self, **{name: change(value) for name, value in tensors.items()})

    def finite(self) -> Self:
        """Return the term with zeros for numbers that are not finite."""
        return self.map(lambda value: value.nan_to_num(0.0, 0.0, 0.0))

    def to(self, dtype: torch.dtype) -> Self:
        """Return the term in another floating-point type."""
        return self.map(lambda value: value.to(dtype) if value.is_floating_point() else value)


@dataclass(frozen=True, eq=False)
class Product(_Tensors):
    """Gradient leftᵀ·right of a linear layer's weight, or of the table that scores words.

    Attributes:
        left: (sequences, positions, first size of the parameter).
        right: (sequences, positions, second size of the parameter).
        chain: chain rule, if the parameter is used in a changed form.
    """

    left: torch.Tensor
    right: torch.Tensor
    chain: Chain | None = None

    def into(self, gradients: torch.Tensor, segments: Segments, *, add: bool) -> None:
        """Write per-unit gradients into `gradients`, (units, *shape), or add them to it."""
        for segment in segments:
            left, right = by_unit(self.left, segment).mT, by_unit(self.right, segment)
            write_product(gradients[segment.units], left, right, add=add)

    def add_weighted(self, total: torch.Tensor, factors: torch.Tensor) -> None:
        """Add Σ over sequences of factor × gradient; `factors` is (sequences,)."""
        left, right, by_row = self.left, self.right, factors[:, None, None]
        # Scaling one side scales the product: one product over all units, no unit's gradient.
        if left.shape[-1] < right.shape[-1]:  # scale, and so copy, the smaller side
            left = left * by_row
        else:
            right = right * by_row
        write_product(total, left.flatten(0, 1).T, right.flatten(0, 1), add=True)


@dataclass(frozen=True, eq=False)
class Total(_Tensors):
    """Gradient Σ over positions of a bias, or of a norm's weight.

    Attributes:
        values: (sequences, positions, size).
    """

    values: torch.Tensor

    def of_rows(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the sums of each sequence, (sequences, size), computed in `dtype`."""
        return self.values.sum(dim=1, dtype=dtype)

    def into(self, gradients: torch.Tensor, segments: Segments, *, add: bool) -> None:
        """Write per-unit gradients into `gradients`, (units, size), or add them to it."""
        if not add:
            gradients.zero_()
        sums = self.of_rows(gradients.dtype)
        for segment in segments:
            gradients[segment.units] += by_unit(sums[:, None], segment).sum(dim=1)

    def add_weighted(self, total: torch.Tensor, factors: torch.Tensor) -> None:
        """Add Σ over sequences of factor × gradient; `factors` is (sequences,)."""
        total += factors @ self.of_rows(factors.dtype)


@dataclass(frozen=True, eq=False)
class Rows(_Tensors):
    """Gradient of a table with single rows looked up; almost all its rows are zero.

    Attributes:
        ids: (sequences, positions) int64, the rows.
        values: (sequences, positions, width), the gradient of each look-up's row.
        num_rows: number of rows of the table.
    """

    ids: torch.Tensor
    values: torch.Tensor
    num_rows: int

    def into(self, gradients: torch.Tensor, segments: Segments, *, add: bool) -> None:
        """Write per-unit gradients into `gradients`, (units, rows, width), or add them to it."""
        for segment in segments:
            if not add:
                gradients[segment.units] = 0.0
        # The units' tables are concatenated: a row's index is offset by the units before its unit.
        places = segments.unit_of_row(self.ids.device)[:, None] * self.num_rows + self.ids
        gradients.flatten(0, 1).index_add_(0, places.flatten(), self.values.flatten(0, 1))

    def add_weighted(self, total: torch.Tensor, factors: torch.Tensor) -> None:
        """Add Σ over sequences of factor × gradient; `factors` is (sequences,)."""
        weighted = self.values * factors.to(self.values.dtype)[:, None, None]
        total.index_add_(0, self.ids.flatten(), weighted.flatten(0, 1))


@dataclass(frozen=True, eq=False)
class MergedRows(_Tensors):
    """Per-unit gradients of a table, as lists of non-zero rows.

    Attributes:
        units: (entries,), unit of each entry.
        ids: (entries,), row of each entry; unique within a unit.
        values: (entries, width).
        num_rows: number of rows of the table.
    """

    units: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor
    num_rows: int

    def squares(self, num_units: int) -> torch.Tensor:
        """Return squared norms, (units,) float64."""
        squares = block_squares(self.values)
        return squares.new_zeros(num_units).index_add_(0, self.units, squares)

    def add_weighted(self, total: torch.Tensor, factors: torch.Tensor) -> None:
        """Add Σ over units of factor × gradient; `factors` is (units,)."""
        total.index_add_(0, self.ids, self.values * factors[self.units, None])


def merged(terms: Sequence[tuple[Rows, Segments]]) -> MergedRows:
    """Return each unit's distinct rows with their sums over all passes."""
    num_rows = terms[0][0].num_rows
    places = [
        (segments.unit_of_row(term.ids.device)[:, None] * num_rows + term.ids).flatten()
        for term, segments in terms
    ]
    looked_up = torch.cat([term.values.flatten(0, 1) for term, _ in terms])
    # Each (unit, row) appears once, with the sum of all its look-ups, as norms need the sums.
    distinct, inverse = torch.unique(torch.cat(places), return_inverse=True)
    values = looked_up.new_zeros(len(distinct), looked_up.shape[-1])
    values.index_add_(0, inverse, looked_up)
    units = distinct.div(num_rows, rounding_mode="floor")
    return MergedRows(units, distinct % num_rows, values, num_rows)


Term = Product | Total | Rows


class Gradients(Protocol):
    """Per-unit gradients of a chunk, formed or not; called with each term as it appears."""

    def start_pass(self, segments: Segments) -> None:
        """Set the units that the sequences of the following terms belong to."""
        ...

    def __call__(self, name: str, term: Term) -> None:
        """Take one term of parameter `name`."""
        ...

    def squares(self) -> torch.Tensor:
        """Return squared norms, (units, parameters) float64, once all terms are in.

        Called once.
        """
        ...

    def drop_non_finite(self) -> None:
        """Replace numbers that are not finite by zeros: a factor of 0 times NaN would be NaN."""
        ...

    def add_weighted(self, sums: Tensors, factors: torch.Tensor) -> None:
        """Add Σ over units of factor × gradient; `factors` is (units, parameters) float64."""
        ...
