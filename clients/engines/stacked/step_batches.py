"""Batches of the local steps of many users; the clipped sum of a stack of updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fedsim.clients.engines.clipped_sums import (
    PartialSum,
    block_squares,
    clip_factors,
    shares,
    sum_of_rows,
)
from fedsim.execution import Unit
from fedsim.tensors import Tensors

# Padded tokens over real ones, above which users go into separate batches.
_MOST_PADDING = 1.5


@dataclass(frozen=True, eq=False)
class LocalUser:
    """A unit with the rows of its examples in each local step."""

    unit: Unit
    batches: Sequence[torch.Tensor]

    @property
    def widest(self) -> int:
        """Tokens of the largest step, padding included."""
        rows = max((len(batch) for batch in self.batches), default=0)
        return rows * self.unit.tokens.shape[1]

    def shape(self, step: int) -> tuple[int, int]:
        """Return the number of rows of a step and the longest one's length."""
        rows = self.batches[step]
        return len(rows), int(self.unit.lengths[rows].max())

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Most steps first; users of like size side by side."""
        unit = self.unit
        return -len(self.batches), -len(unit.lengths), -unit.tokens.shape[1], unit.key


@dataclass(frozen=True, eq=False)
class StepBatch:
    """One step of neighbouring users of a stack.

    Attributes:
        users: their places in the stack.
        tokens: (users, rows, length) int64; rows of weight 0 repeat one of the user's own.
        lengths: (users, rows) int64.
        weights: (users, rows) float64, 1 over the number of the user's rows.
    """

    users: slice
    tokens: torch.Tensor
    lengths: torch.Tensor
    weights: torch.Tensor


def step_batches(users: Sequence[LocalUser], step: int, max_tokens: int) -> Iterator[StepBatch]:
    """Yield step number `step` of all users that have one, those with most steps coming first.

    A batch takes neighbours while little is padded and, padding included, `max_tokens` hold them;
    it has at least one user.
    """
    active = [user for user in users if step < len(user.batches)]
    start = 0
    while start < len(active):
        # Greedy: neighbours are alike in size, so the next user joins while padding stays low.
        stop, rows, length, real = start, 0, 0, 0
        while stop < len(active):
            wider, longer = active[stop].shape(step)
            new_rows, new_length = max(rows, wider), max(length, longer)
            real += wider * longer
            padded = new_rows * new_length * (stop + 1 - start)
            if stop > start and padded > min(max_tokens, _MOST_PADDING * real):
                break
            stop, rows, length = stop + 1, new_rows, new_length
        yield _stacked(active[start:stop], step, start, (rows, length))
        start = stop


def _stacked(
    users: Sequence[LocalUser], step: int, start: int, shape: tuple[int, int]
) -> StepBatch:
    num_rows, length = shape
    tokens = torch.zeros(len(users), num_rows, length, dtype=torch.int64)
    lengths = torch.zeros(len(users), num_rows, dtype=torch.int64)
    weights = torch.zeros(len(users), num_rows, dtype=torch.float64)
    for place, user in enumerate(users):
        rows = user.batches[step]
        weights[place, : len(rows)] = 1.0 / len(rows)
        # Filled up with the user's own first row at weight 0: real tokens, so nothing overflows.
        rows = torch.cat([rows, rows[:1].expand(num_rows - len(rows))])
        taken = user.unit.tokens[rows, :length]
        tokens[place, :, : taken.shape[1]] = taken
        lengths[place] = user.unit.lengths[rows]
    return StepBatch(slice(start, start + len(users)), tokens, lengths, weights)


def add_stack(
    total: PartialSum, users: Sequence[LocalUser], updates: Tensors, losses: torch.Tensor
) -> list[LocalUser]:
    """Add w·clip(update) of a stack of updates, and return the users that it left out.

    Those have a NaN or an infinity, which must not reach the others' sum, or numbers or factors
    near the ends of float32. It raises before it adds anything, or not at all.
    """
    squares = torch.stack([block_squares(value.flatten(1)) for value in updates.values()], dim=1)
    factors, plain = clip_factors(total.clip, updates, squares)
    for index in (~plain).nonzero()[:, 0].tolist():
        for value in updates.values():
            value[index] = 0.0  # 0 times NaN would be NaN
    parts = shares(factors, [user.unit for user in users], plain)
    sums = {
        name: sum_of_rows(parts[:, column].to(value.dtype), value.flatten(1))
        for column, (name, value) in enumerate(updates.items())
    }
    added = [user for user, is_plain in zip(users, plain.tolist(), strict=True) if is_plain]
    # Whatever may run out of memory comes before the sum: then the stack is computed again.
    num_unclipped, added_losses = total.within(factors, plain), losses[plain]
    total.count(
        [user.unit for user in added],
        added_losses,
        num_gradients=sum(len(rows) for user in added for rows in user.batches),
        num_unclipped=num_unclipped,
    )
    total.add(sums)
    return [user for user, is_plain in zip(users, plain.tolist(), strict=True) if not is_plain]
