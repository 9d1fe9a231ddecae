"""Microbatches: units' sequences cut into passes of rows that are padded to one length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import pad

from fedsim.clients.engines.cross_entropy import Batch
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.gradient_terms import Segments
from fedsim.clients.engines.per_example.packing import Placement, placed
from fedsim.clients.models.dropout import unit_streams
from fedsim.clients.models.lstm_recurrence import RECURRENT
from fedsim.clients.models.transformers_model import max_positions
from fedsim.evaluation.losses import token_ids
from fedsim.execution import Unit

# Rows are padded to these lengths: so many steps from one power of two to the next, each a multiple
# of `_STEP`. A pass has rows of one length, so fewer steps are more padding and fewer passes: a GPU
# waits for its host between passes, a CPU pays for padding.
_CPU_STEPS, _GPU_STEPS, _STEP = 4, 2, 32

# Of a product of fewer rows and more, a row may have other bits: processors take other kernels.
# Measured with MKL on one thread, float32, products of up to 50,000 terms: from 192 rows on a row
# has the same bits beside any number of others; from 16 to 191 too. Not so with several threads.
# A recurrence takes rows by position, so that rows, not tokens, are in one of the two ranges.
_LEAST_TOKENS = 192
_LEAST_RECURRENT, _MOST_RECURRENT = 16, 128
# Numbers that a vector instruction takes at once, twice: what is left over at the end of a tensor
# is computed otherwise, so that the last row would have other bits. So are rows of a product of one
# column, as of adapters of rank 1, that are no four.
_VECTOR, _TOKEN_STEP = 32, 4


@dataclass(frozen=True)
class PassShape:
    """Which rows go through a network together: what makes a row's bits its own.

    The length that a row is padded to is a function of its own tokens, never of who else is there:
    sums along a row, as in attention, are rounded by its length. Beside other rows a kernel may
    round a row otherwise where there are few of them, so small passes are filled with empty rows.

    Attributes:
        most_positions: rows are not padded beyond so many; 0: not at all.
        least_rows: of a pass.
        most_rows: of a pass.
        row_step: a pass has a multiple of so many rows.
        least_tokens: of a pass, padding included.
        token_step: a pass has a multiple of so many tokens, padding included.
        steps: of lengths, from one power of two to the next.
    """

    most_positions: int = 0
    least_rows: int = 1
    most_rows: int = 1 << 30
    row_step: int = 1
    least_tokens: int = 1
    token_step: int = 1
    steps: int = _CPU_STEPS

    def padded(self, length: int) -> int:
        """Return the positions of a row of so many tokens.

        Examples:
            >>> shape = PassShape(most_positions=1000)
            >>> [shape.padded(length) for length in (1, 16, 17, 130, 300, 999, 1001)]
            [32, 32, 32, 160, 320, 1000, 1001]
        """
        step = max(_STEP, (1 << (length - 1).bit_length()) // (2 * self.steps))
        return max(length, min(-(-length // step) * step, self.most_positions))

    def num_rows(self, rows: int, length: int) -> int:
        """Return how many rows a pass of so many has, empty ones included."""
        rows, step = max(rows, self.least_rows, -(-self.least_tokens // length)), self._step(length)
        return -(-rows // step) * step

    def most(self, length: int, max_tokens: int) -> int:
        """Return how many rows of a length a pass of so many tokens may have."""
        rows, step = max(1, max_tokens // length), self._step(length)
        return min(rows if rows < step else rows - rows % step, self.most_rows)

    def _step(self, length: int) -> int:
        return math.lcm(self.row_step, self.token_step // math.gcd(self.token_step, length))


_PLAIN = PassShape()


def pass_shape(model: OpenModel) -> PassShape:
    """Return the shape of a network's passes.

    A recurrence multiplies a matrix of one position of every row; other layers one of all positions
    of all rows, and attention one of each row's. A network that does not say how many positions it
    has is taken to have as many as the data's sequences.
    """
    positions = max_positions(model.module)
    if positions is None:
        positions = getattr(model, "sequence_length", 0)
    if model.device.type == "cuda":
        return PassShape(positions, steps=_GPU_STEPS)
    shape = PassShape(positions, least_tokens=_LEAST_TOKENS, token_step=_TOKEN_STEP)
    if sizes := [
        part.hidden_size for part in model.module.modules() if isinstance(part, RECURRENT)
    ]:
        row_step = _VECTOR // math.gcd(_VECTOR, *sizes)
        return replace(
            shape, least_rows=_LEAST_RECURRENT, most_rows=_MOST_RECURRENT, row_step=row_step
        )
    return shape


@dataclass(frozen=True, eq=False)
class Pass:
    """Rows of sequences that go through the network together.

    Attributes:
        batch: the rows; a sequence's loss counts 1 over its unit's number of them. Those that the
            segments do not have are empty.
        segments: the units of the rows.
    """

    batch: Batch
    segments: Segments


def passes(
    units: Sequence[Unit],
    max_tokens: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    row_tokens: int = 0,
    shape: PassShape = _PLAIN,
) -> Iterator[Pass]:
    """Cut the units' sequences into passes of rows of one length, the longest first.

    A pass keeps to `max_tokens`, padding included, but for a single row; within it rows stand in
    the order of the units. Short sequences share rows of at most `row_tokens`, but none where masks
    of dropout belong to rows. How a unit's rows are spread over passes is of that unit alone: rows
    of one length are cut only where they alone are too many.
    """
    streams = unit_streams(units)
    placement = placed(units, row_tokens if streams is None else 0)
    unit_of = torch.arange(len(units)).repeat_interleave(placement.counts)
    sequences = _Sequences(units, placement)
    padded = torch.tensor([shape.padded(length) for length in placement.lengths.tolist()])
    for length in sorted(set(padded.tolist()), reverse=True):
        of_length = (padded == length).nonzero()[:, 0]
        most = shape.most(length, max_tokens)
        for rows in torch.split(of_length, _cuts(unit_of[of_length], most)):
            filled = min(shape.num_rows(len(rows), length), max(len(rows), most))
            size = (filled, length)
            tokens, shares, positions = sequences.in_rows(rows, size)
            batch = Batch(
                tokens.to(device),
                shares.to(device, dtype),
                None if positions is None else positions.to(device),
                None if streams is None else pad(streams[rows], (0, filled - len(rows))).to(device),
            )
            of_units = torch.bincount(unit_of[rows], minlength=len(units))
            own = torch.zeros_like(of_units).index_add_(0, unit_of[rows], placement.lengths[rows])
            whole = bool(((of_units == 0) | (of_units == placement.counts)).all())
            yield Pass(batch, Segments(of_units.tolist(), whole=whole, tokens=own.tolist()))


def _cuts(unit_of: torch.Tensor, most: int) -> list[int]:
    """Return numbers of rows of passes of at most `most`, from each row's unit in ascending order.

    Where a unit alone has more, it begins a pass, and others join its last rows.
    """
    cuts, rows = [], 0
    for count in torch.unique_consecutive(unit_of, return_counts=True)[1].tolist():
        if rows + count > most and rows:
            cuts.append(rows)
            rows = 0
        rows += count
        while rows > most:
            cuts.append(most)
            rows -= most
    return [*cuts, rows]


class _Sequences:
    """All units' sequences end to end, and their placement in rows."""

    def __init__(self, units: Sequence[Unit], placement: Placement) -> None:
        self._placement = placement
        self._tokens = torch.cat([unit.tokens.flatten() for unit in units])
        self._lengths = torch.cat([unit.lengths for unit in units])
        # Each of a unit's sequences has the same weight, and so has each of a sequence's
        # predictions that count.
        sizes = torch.tensor([len(unit.lengths) for unit in units])
        widths = torch.tensor([unit.tokens.shape[1] for unit in units]).repeat_interleave(sizes)
        self._begins = widths.cumsum(0) - widths
        per_unit = sizes.repeat_interleave(sizes).double()
        counted = pad((self._tokens >= 0).cumsum(0), (1, 0))  # of the tokens before each
        predicted = counted[self._begins + self._lengths] - counted[self._begins + 1]
        self._shares = 1.0 / (per_unit * predicted.clamp(min=1))

    def in_rows(
        self, rows: torch.Tensor, size: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return token ids, shares and positions of rows, each of `size` (rows, length).

        Shares are the weights of the predictions of the next token. Positions are None where every
        row has one sequence.
        """
        # Scatter by flat index: every token of the rows gets its place in the padded block at once,
        # `inside` being its position in its own sequence.
        placement = self._placement
        place_of = torch.full((len(placement.lengths),), -1)
        place_of[rows] = torch.arange(len(rows))
        places = place_of[placement.row_of]
        here = (places >= 0).nonzero()[:, 0]
        starts = places[here] * size[1] + placement.start_of[here]
        lengths = self._lengths[here]
        ends = lengths.cumsum(0)
        inside = torch.arange(int(ends[-1])) - (ends - lengths).repeat_interleave(lengths)
        flat = starts.repeat_interleave(lengths) + inside
        own = self._tokens[self._begins[here].repeat_interleave(lengths) + inside]
        tokens = torch.zeros(size, dtype=torch.int64).flatten()
        tokens[flat] = token_ids(own)
        predicts = (inside + 1 < lengths.repeat_interleave(lengths)) & (own.roll(-1) >= 0)
        shares = torch.zeros(len(tokens), dtype=torch.float64)
        shares[flat] = self._shares[here].repeat_interleave(lengths) * predicts
        positions = None
        if len(here) > len(rows):
            positions = torch.zeros_like(tokens)
            positions[flat] = inside
            positions = positions.view(size)
        return tokens.view(size), shares.view(size), positions
