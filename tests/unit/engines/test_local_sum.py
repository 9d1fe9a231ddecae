"""Memory that runs out while a stack is added: nobody is counted twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedsim.clients.engines.clipped_sums import PartialSum, norm_error
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.stacked.local_vmap import LocalVmap
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clipping import FlatClip
from fedsim.materials import Materials
from fedsim.tensors import l2_norm

USERS = np.arange(8)
CLIP = FlatClip(l2_clip_norm=0.07)


@pytest.mark.parametrize("where", ["within", "count"])
def test_what_runs_out_of_memory_while_it_is_added_is_added_once(
    materials: Materials, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Twice in the sum and once in the counts would be 2S of sensitivity with noise for S."""
    task = LocalSGD(materials, group_size=3, batch_size=2, epochs=1, learning_rate=0.1)
    parameters = materials.model.initial_parameters()
    expected = loop(task, parameters, USERS, CLIP, 0, norm_error=norm_error(parameters))
    kept, failures = getattr(PartialSum, where), [0]

    def scarce(*arguments: object, **named: object) -> object:
        if not failures[0]:
            failures[0] += 1
            raise torch.OutOfMemoryError("no more")
        return kept(*arguments, **named)

    monkeypatch.setattr(PartialSum, where, scarce)
    total = LocalVmap(materials.model)(task, parameters, USERS, CLIP, 0)
    assert failures == [1]
    assert (total.num_units, total.num_unclipped) == (8, expected.num_unclipped)
    apart = {name: total.values[name] - value for name, value in expected.values.items()}
    assert l2_norm(apart) < 1e-5 * l2_norm(expected.values)
