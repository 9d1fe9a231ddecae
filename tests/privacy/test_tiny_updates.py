"""Updates whose squares vanish in float32 are clipped all the same."""

from __future__ import annotations

import pytest
import torch

from clients.engines.local_steps import LocalUser
from clients.engines.local_sum import add_stack
from clients.engines.partial_sum import PartialSum
from fedsim.clipping import FlatClip
from fedsim.execution import Unit
from fedsim.tensors import l2_norm


@pytest.mark.parametrize("entry", [1e-18, 1e-19, 3e-21, 1e-30])
def test_a_stack_of_tiny_updates_keeps_to_the_bound(entry: float) -> None:
    size = 5000
    bound = entry  # a seventieth of the norm
    unit = Unit(0, torch.zeros(1, 2, dtype=torch.int64), torch.tensor([2]))
    user = LocalUser(unit, [torch.tensor([0])])
    total = PartialSum({"w": torch.zeros(size)}, FlatClip(l2_clip_norm=bound))
    left = add_stack(total, [user], {"w": torch.full((1, size), entry)}, torch.zeros(1))
    assert left == [] or left == [user]  # computed alone, then, in float64
    assert l2_norm(total.result().values) <= bound
