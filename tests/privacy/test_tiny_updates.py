"""Updates whose squares vanish in float32 are clipped all the same."""

from __future__ import annotations

import pytest
import torch

from fedsim.clients.engines.clipped_sums import PartialSum
from fedsim.clients.engines.stacked.step_batches import LocalUser, add_stack
from fedsim.clipping import FlatClip
from fedsim.execution import Unit
from fedsim.tensors import l2_norm


@pytest.mark.parametrize("entry", [1e-12, 1e-19, 3e-21, 1e-24])
def test_a_stack_of_tiny_updates_keeps_to_the_bound(entry: float) -> None:
    """Both users are in the sum, and it keeps to both bounds; of the last, no square is left."""
    size = 5000
    bound = entry  # a seventieth of the norm
    units = [Unit(key, torch.zeros(1, 2, dtype=torch.int64), torch.tensor([2])) for key in (0, 1)]
    users = [LocalUser(unit, [torch.tensor([0])]) for unit in units]
    total = PartialSum({"w": torch.zeros(size)}, FlatClip(l2_clip_norm=bound))
    left = add_stack(total, users, {"w": torch.full((2, size), entry)}, torch.zeros(2))
    assert left == []  # none to be computed alone
    result = total.result()
    assert result.num_units == 2
    assert result.num_unclipped == 0
    assert 0.0 < l2_norm(result.values) <= 2 * bound
