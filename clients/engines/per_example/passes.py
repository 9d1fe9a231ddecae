"""Microbatches: units' sequences cut into passes of like length, padded to the longest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import pad

from fedsim.clients.engines.cross_entropy import Batch
from fedsim.clients.engines.per_example.gradient_terms import Segments
from fedsim.clients.engines.per_example.packing import Placement, placed
from fedsim.clients.models.dropout import unit_streams
from fedsim.clients.models.lstm_recurrence import RECURRENT
from fedsim.clients.models.transformers_model import max_positions
from fedsim.evaluation.losses import token_ids
from fedsim.execution import Unit

# The fixed cost of a pass, as a number of tokens: on a CPU, for each thread (threads speed up the
# tokens alone; measured with small models on one and two); on a GPU, which waits for its host.
_CPU_PASS, _GPU_PASS = 150, 2048


# With so many rows and more, a row of a product has the same bits beside any number of others;
# beside fewer, processors take other kernels (measured with MKL on one thread, float32; not so with
# several threads and wide layers, nor in fused attention, which goes by blocks of 32 positions).
_LEAST = 16


class LeastShape(NamedTuple):
    """Rows of a pass and positions of a row, at least."""

    rows: int
    positions: int


NO_LEAST = LeastShape(1, 1)


def least_shape(module: nn.Module) -> LeastShape:
    """Return the least shape of a network's passes, so that few kernels are for small products.

    A recurrence multiplies a matrix of one position of every row; other layers one of all positions
    of all rows, and attention one of each row's.
    """
    positions = max_positions(module)
    return LeastShape(
        _LEAST if any(isinstance(part, RECURRENT) for part in module.modules()) else 1,
        1 if positions is None else min(_LEAST, positions),
    )


@dataclass(frozen=True, eq=False)
class Pass:
    """Rows of sequences that go through the network together.

    Attributes:
        batch: the rows; a sequence's loss counts 1 over its unit's number of them.
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
    least: LeastShape = NO_LEAST,
) -> Iterator[Pass]:
    """Cut the units' sequences into passes of like length, where padding costs more than passes.

    A pass keeps to `max_tokens`, padding included, and has at least one row; within it rows stand
    in the order of the units. Short sequences share rows of at most `row_tokens`, but none where
    masks of dropout belong to rows. A pass that is smaller than `least` is padded; rows that this
    adds are the last unit's, and without a loss.
    """
    streams = unit_streams(units)
    placement = placed(units, row_tokens if streams is None else 0)
    unit_of = torch.arange(len(units)).repeat_interleave(placement.counts)
    sequences = _Sequences(units, placement)
    on_gpu = device.type == "cuda"
    pass_cost = _GPU_PASS if on_gpu else _CPU_PASS * torch.get_num_threads()
    padded = placement.lengths.clamp(min=least.positions)
    for rows in _runs_of_like_length(padded, max_tokens, pass_cost):
        tokens, shares, positions = sequences.in_rows(rows, least)
        more = len(tokens) - len(rows)
        batch = Batch(
            tokens.to(device),
            shares.to(device, dtype),
            None if positions is None else positions.to(device),
            None if streams is None else pad(streams[rows], (0, more)).to(device),
        )
        of_units = torch.bincount(unit_of[rows], minlength=len(units))
        own = torch.zeros_like(of_units).index_add_(0, unit_of[rows], placement.lengths[rows])
        whole = bool(((of_units == 0) | (of_units == placement.counts)).all())
        of_units[unit_of[rows[-1]]] += more
        yield Pass(batch, Segments(of_units.tolist(), whole=whole, tokens=own.tolist()))


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
        self, rows: torch.Tensor, least: LeastShape
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return token ids, shares and positions of rows, each (rows, length) or `least`.

        Shares are the weights of the predictions of the next token. Positions are None where every
        row has one sequence.
        """
        # Scatter by flat index: every token of the rows gets its place in the padded block at once,
        # `inside` being its position in its own sequence.
        placement = self._placement
        longest = int(placement.lengths[rows].max())
        size = (max(len(rows), least.rows), max(longest, least.positions))
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


def _runs_of_like_length(
    lengths: torch.Tensor, max_tokens: int, pass_cost: int
) -> Iterator[torch.Tensor]:
    """Yield the positions of each pass's rows, in ascending order.

    Of all ways to cut the rows, sorted by length, where the length changes, this takes the one
    that costs least: padded tokens, and `pass_cost` a pass.
    """
    # Dynamic programming over the distinct lengths: costs[i] is the least cost of the first i, and
    # begins[i] where the last run of that optimum begins.
    order = torch.argsort(lengths, descending=True, stable=True)
    tops, counts = np.unique(-lengths.numpy(), return_counts=True)
    tops, ends = -tops, np.concatenate([[0], counts.cumsum()])
    costs, begins = np.zeros(len(ends)), np.zeros(len(ends), dtype=np.int64)
    for last in range(1, len(ends)):
        padded = (ends[last] - ends[:last]) * tops[:last]
        ways = costs[:last] + padded + pass_cost * np.ceil(padded / max_tokens)
        begins[last] = ways.argmin()
        costs[last] = ways.min()
    last, runs = len(tops), []
    while last:
        begin = int(begins[last])
        runs.append((order[ends[begin] : ends[last]], max(1, max_tokens // int(tops[begin]))))
        last = begin
    for run, most in reversed(runs):
        # In the order of the units, so that most have all their rows of a run in one pass.
        yield from torch.split(run.sort().values, most)
