"""Stacks of users' updates from local training, clipped and added at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from clients.engines.local_steps import LocalUser
from clients.engines.partial_sum import PartialSum, shares
from clients.engines.squares import block_squares, clip_factors, sum_of_rows
from fedsim.tensors import Tensors


def add_stack(
    total: PartialSum, users: Sequence[LocalUser], updates: Tensors, losses: torch.Tensor
) -> list[LocalUser]:
    """Add w·clip(update) of a stack of updates, and return the users that it left out.

    Those are the ones with a NaN or an infinity, which only the one that has it may lose,
    and numbers or factors near the ends of float32. Raises before it adds anything, or not at all.
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
    kept = [user for user, is_plain in zip(users, plain.tolist(), strict=True) if is_plain]
    # All that takes memory comes before the sum: what runs out of it is done again, once added.
    num_unclipped, kept_losses = total.within(factors, plain), losses[plain]
    total.count(
        [user.unit for user in kept],
        kept_losses,
        num_gradients=sum(len(rows) for user in kept for rows in user.batches),
        num_unclipped=num_unclipped,
    )
    total.add(sums)
    return [user for user, is_plain in zip(users, plain.tolist(), strict=True) if not is_plain]
