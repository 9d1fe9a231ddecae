"""Sequence packing: put short sequences of one unit side by side in a row, for less padding.

The sequences of a row do not attend to each other: positions restart at 0 at each sequence, and
transformers then masks the others. Before rows are packed, a trial checks that the network does so.
A row holds sequences of one unit, and the placement depends on that unit alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.models.transformers_model import max_positions
from fedsim.execution import Unit
from fedsim.language_model import nudged
from fedsim.tensors import Tensors

# In a longer row, attention costs more than the saved padding (measured with tiny-gpt).
ROW_TOKENS = 64

_TOKENS = 8  # tokens of each sequence in the trial row
# Both relative to the largest logit: the maximum change by rounding, and the minimum change by an
# attended sequence in front; with a smaller change the trial would show nothing.
_ROUNDING, _SEEN = 1e-4, 1e-3


@dataclass(frozen=True, eq=False)
class Placement:
    """The rows and offsets of units' sequences; rows are in the order of the units.

    Attributes:
        row_of: (sequences,) int64, each sequence's row.
        start_of: (sequences,) int64, the offset of each sequence in its row.
        lengths: (rows,) int64, tokens of each row.
        counts: (units,) int64, rows of each unit.
    """

    row_of: torch.Tensor
    start_of: torch.Tensor
    lengths: torch.Tensor
    counts: torch.Tensor


def placed(units: Sequence[Unit], most: int) -> Placement:
    """Return the placement of the units' sequences in rows of `most` tokens; 0: one per row.

    A longer sequence has its own row.
    """
    row_of: list[int] = []
    start_of: list[int] = []
    lengths: list[int] = []
    counts: list[int] = []
    for unit in units:
        rows, starts, filled = _best_fit(unit.sizes, most)
        row_of += [len(lengths) + row for row in rows]
        start_of += starts
        lengths += filled
        counts.append(len(filled))
    return Placement(*(torch.tensor(values) for values in (row_of, start_of, lengths, counts)))


def num_rows(unit: Unit, most: int) -> int:
    """Return the number of rows of a unit, with at most `most` tokens per row."""
    return len(_best_fit(unit.sizes, most)[2])


def _best_fit(lengths: list[int], most: int) -> tuple[list[int], list[int], list[int]]:
    """Return each sequence's row and start, and each row's tokens.

    The longest sequence comes first; each goes into the fullest row that has room.
    """
    # Best fit decreasing (bin packing): `with_room[r]` lists the rows with r tokens of room left.
    shortest = sorted(lengths)[:2]
    if len(lengths) < 2 or sum(shortest) > most:
        return list(range(len(lengths))), [0] * len(lengths), lengths
    rows, starts = [0] * len(lengths), [0] * len(lengths)
    filled: list[int] = []
    with_room: list[list[int]] = [[] for _ in range(most + 1)]
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        size = lengths[index]
        room = next((r for r in range(size, most + 1) if with_room[r]), None)
        if room is None:
            row, room = len(filled), max(most, size)
            filled.append(0)
        else:
            row = with_room[room].pop()
        rows[index], starts[index] = row, filled[row]
        filled[row] += size
        with_room[room - size].append(row)
    return rows, starts, filled


def row_tokens(model: OpenModel, parameters: Tensors) -> int:
    """Return the maximum tokens of a row: `ROW_TOKENS`, or 0 if each sequence needs its own row.

    A trial on made-up tokens, at the initial parameters and near them, decides. The result is the
    same in every process of a run and after a resume.

    Args:
        model: the model of the run, in float32.
        parameters: tensors with the types and devices for the trial.
    """
    if "positions" not in inspect.signature(model.logits).parameters:
        return 0
    # Several sequences in a row need a mask, and with a mask a GPU uses another kernel.
    if getattr(model, "attention", "eager") != "eager":
        return 0
    positions = max_positions(model.module)
    if positions is not None and positions < ROW_TOKENS:  # more positions may crash a GPU
        return 0
    start = {
        name: value.to(parameters[name].device, parameters[name].dtype)
        for name, value in model.initial_parameters().items()
    }
    try:
        apart = all(_keeps_apart(model, near) for near in (start, nudged(start)))
        return ROW_TOKENS if apart else 0
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a network that cannot take such rows may raise any error
        return 0


@torch.no_grad()
def _keeps_apart(model: OpenModel, parameters: Tensors) -> bool:
    """Return whether a sequence after others in a full row has the same logits as alone.

    Without positions it must attend to the others; otherwise the comparison would show nothing.
    Also, a text's logits may not depend on the largest position of a pass: packed rows have
    smaller positions, so another user's long row could change their logits.
    """
    device, words = model.device, model.vocabulary_size
    sequences = torch.arange(ROW_TOKENS, device=device).view(-1, _TOKENS)
    sequences = (sequences * sequences + 1) % words
    others = torch.cat([(sequences[:-1] + 1) % words, sequences[-1:]])
    rows = torch.stack([sequences, others]).flatten(1)
    positions = torch.arange(_TOKENS, device=device).repeat(2, len(sequences))
    alone = model.logits(parameters, sequences[-1:])
    packed = model.logits(parameters, rows, positions)[:, -_TOKENS:]
    long = model.logits(parameters, rows)
    attended, beginning = long[:, -_TOKENS:], model.logits(parameters, rows[:1, :_TOKENS])
    largest = float(alone.abs().max())
    differs = float((packed - alone).abs().max())
    differs = max(differs, float((long[:1, :_TOKENS] - beginning).abs().max()))
    moved = float((attended[0] - attended[1]).abs().max())
    return differs <= _ROUNDING * largest and moved >= _SEEN * largest > 0.0
