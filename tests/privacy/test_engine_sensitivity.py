"""No engine lets a user move the sum by more than the clip's bound, fast arithmetic or not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from clients.averaged_gradient import AveragedGradient
from fedsim.clipping import Clip, FlatClip, NormalisedClip, PerLayerClip, layers_of
from fedsim.execution import Engine
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials
from fedsim.tensors import Tensors, l2_norm
from tests.contracts.test_engines import ENGINES

BOUND = 0.01  # far below any user's norm: everybody is clipped

CLIPS: dict[str, Callable[[Tensors], Clip]] = {
    "flat": lambda _: FlatClip(l2_clip_norm=BOUND),
    "per-layer": lambda layout: PerLayerClip.evenly(BOUND, layers_of(layout)),
    "normalised": lambda _: NormalisedClip(clip=FlatClip(l2_clip_norm=BOUND)),
}


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("make_clip", CLIPS.values(), ids=CLIPS)
def test_a_user_moves_the_sum_by_at_most_the_bound(
    materials: Materials,
    make_engine: Callable[[LanguageModel], Engine],
    make_clip: Callable[[Tensors], Clip],
) -> None:
    """Alone, exactly; among others, up to what float32 sums of a chunk round."""
    task, parameters = (
        AveragedGradient(materials, group_size=3),
        materials.model.initial_parameters(),
    )
    clip, engine = make_clip(parameters), make_engine(materials.model)
    users = np.arange(12)
    everybody = engine(task, parameters, users, clip, 0)
    for user in users[::5]:
        alone = l2_norm(engine(task, parameters, np.array([user]), clip, 0).values)
        assert 0.99 * clip.bound <= alone <= clip.bound
        others = engine(task, parameters, users[users != user], clip, 0)
        moved = l2_norm({k: everybody.values[k] - others.values[k] for k in others.values})
        assert 0.99 * clip.bound <= moved <= clip.bound * (1.0 + 3e-6)
