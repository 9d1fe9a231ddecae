"""Microbatches: cut units' sequences into passes of rows padded to one length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from fedsim.clients.engines.cross_entropy import Batch
from fedsim.clients.engines.pass_shape import PassShape
from fedsim.clients.engines.per_example.gradient_terms import Segments
from fedsim.clients.engines.per_example.packing import Placement, placed
from fedsim.clients.models.dropout import unit_streams
from fedsim.clients.models.gpu_kernels import sent
from fedsim.evaluation.losses import token_ids
from fedsim.execution import Unit

_PLAIN = PassShape()


@dataclass(frozen=True, eq=False)
class Pass:
    """Rows of sequences that go through the network together.

    Attributes:
        batch: the rows; the weight of a sequence's loss is one over its unit's number of sequences.
            Rows without a segment are empty.
        segments: units of the rows.
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
    """Cut the units' sequences into passes of rows of one length, longest rows first.

    A pass has at most `max_tokens` tokens, including padding, or a single longer row. Its rows are
    in the order of the units. Short sequences share rows of at most `row_tokens` tokens, except
    with dropout, whose masks belong to rows. All rows of at most `row_tokens` tokens have
    positions, even with one sequence. Empty rows fill a pass to one of the sizes of `shape`.
    """
    streams = unit_streams(units)
    row_tokens = row_tokens if streams is None else 0
    shared = shape.padded(row_tokens) if row_tokens else 0
    placement = placed(units, row_tokens)
    unit_of = torch.arange(len(units)).repeat_interleave(placement.counts)
    sequences = _Sequences(units, placement)
    padded = torch.tensor([shape.padded(length) for length in placement.lengths.tolist()])
    for length in sorted(set(padded.tolist()), reverse=True):
        of_length = (padded == length).nonzero()[:, 0]
        most = shape.most(length, max_tokens)
        for rows in torch.split(of_length, _cuts(unit_of[of_length], most)):
            size = (shape.filled(len(rows), most), length)
            tokens, shares, positions = sequences.in_rows(rows, size, length <= shared)
            of_rows = None if streams is None else pad(streams[rows], (0, size[0] - len(rows)))
            batch = Batch(
                sent(tokens, device),
                sent(shares.to(dtype), device),
                None if positions is None else sent(positions, device),
                None if of_rows is None else sent(of_rows, device),
            )
            of_units = torch.bincount(unit_of[rows], minlength=len(units))
            whole = bool(((of_units == 0) | (of_units == placement.counts)).all())
            yield Pass(batch, Segments(of_units.tolist(), whole=whole))


def _cuts(unit_of: torch.Tensor, most: int) -> list[int]:
    """Return the number of rows of each pass, at most `most`; `unit_of` ascends.

    A unit with more than `most` rows begins a new pass, and later units join its last pass.
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
    """All units' sequences, concatenated, and their placement in rows."""

    def __init__(self, units: Sequence[Unit], placement: Placement) -> None:
        self._placement = placement
        self._tokens = torch.cat([unit.tokens.flatten() for unit in units])
        self._lengths = torch.cat([unit.lengths for unit in units])
        # All sequences of a unit have the same weight, and so have all counted predictions of a
        # sequence.
        sizes = torch.tensor([len(unit.sizes) for unit in units])
        widths = torch.tensor([unit.tokens.shape[1] for unit in units]).repeat_interleave(sizes)
        self._begins = widths.cumsum(0) - widths
        per_unit = sizes.repeat_interleave(sizes).double()
        counted = pad((self._tokens >= 0).cumsum(0), (1, 0))  # number of counted tokens before each
        predicted = counted[self._begins + self._lengths] - counted[self._begins + 1]
        self._shares = 1.0 / (per_unit * predicted.clamp(min=1))

    def in_rows(
        self, rows: torch.Tensor, size: tuple[int, int], positioned: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return token ids, shares and positions of rows, each of `size` (rows, length).

        Shares are the weights of next-token predictions. Positions are None unless `positioned`,
        which is required for rows of several sequences.
        """
        # Scatter by flat index all tokens into the padded block at once; `inside` is a token's
        # position in its sequence.
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
        if positioned:
            # Continue to the end of each row, like the default positions of transformers.
            positions = torch.arange(size[1]).repeat(size[0])
            positions[flat] = inside
            positions = positions.view(size)
        return tokens.view(size), shares.view(size), positions
