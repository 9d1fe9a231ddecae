"""Who brings NaN, infinities or huge numbers moves nobody else, whichever engine adds them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch

from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import FlatClip, NoClip
from fedsim.execution import Engine
from fedsim.language_model import LanguageModel
from fedsim.tensors import all_finite, l2_norm
from tests.contracts.definition import CLIP_MARGIN
from tests.contracts.test_engines import ENGINES
from tests.robustness.dirty.engines import World, trial
from tests.robustness.dirty.paths import CHECKS, Check
from tests.robustness.dirty.sums import (
    Judged,
    check_estimates,
    check_same,
    check_sum,
    minus,
    trial_of_sums,
)
from tests.robustness.dirty.tiny_world import LONGEST, USERS, mark, vocabulary

CLIP = FlatClip(l2_clip_norm=0.01)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.make(tmp_path_factory.mktemp("world"), 0)


@pytest.fixture(autouse=True)
def _clean(world: World) -> None:
    world.model.poison({})


@pytest.mark.parametrize("make_engine", ENGINES.values(), ids=ENGINES)
def test_padding_up_to_a_longer_neighbour_drops_nobody(
    world: World, make_engine: Callable[[LanguageModel], Engine]
) -> None:
    """A position that only long examples reach overflows; finite parameters, as they may become."""
    parameters = world.materials.model.initial_parameters()
    parameters["transformer.wpe.weight"][LONGEST - 2] = 3e38 * torch.tensor([1.0, -1.0, 1.0, 1.0])
    task, keys = AveragedGradient(world.materials, group_size=9), np.arange(USERS)
    finite = np.array(
        [all_finite(task.update(parameters, task.unit(key, 0), 0).values) for key in range(USERS)]
    )
    assert 0 < finite.sum() < USERS
    engine = make_engine(world.materials.model)
    whole = engine(task, parameters, keys, CLIP, 0)
    clean = engine(task, parameters, keys[finite], CLIP, 0)
    assert whole.num_non_finite == USERS - finite.sum()
    assert clean.num_non_finite == 0
    # Who is computed again alone has another margin of the clip.
    assert l2_norm(minus(whole, clean)) < CLIP_MARGIN * l2_norm(clean.values)


@pytest.mark.parametrize("factor", [1e20, 1e-42, 0.0, float("nan")])
@pytest.mark.parametrize("make", [materialised, ghost])
def test_a_first_unit_that_tells_nothing_does_not_end_the_layer_rules(
    world: World, make: Callable[[OpenModel], Engine], factor: float
) -> None:
    task = AveragedGradient(world.materials, group_size=3)
    engine = make(cast(OpenModel, world.materials.model))
    parameters, words = world.materials.model.initial_parameters(), vocabulary()
    world.model.poison(
        {words[mark(user, kind)]: (factor, 1.0) for user in range(9) for kind in "ab"}
    )
    engine(task, parameters, np.arange(USERS - 1), CLIP, 0)
    world.model.poison({})
    engine(task, parameters, np.arange(USERS), CLIP, 1)
    assert not engine._refused  # type: ignore[attr-defined]


def test_random_dirt(world: World) -> None:
    """The torture, a few trials of it; `python -m tests.robustness` has the time for more."""
    rng, judged = np.random.default_rng(5), Judged()
    for _ in range(2):
        trial(world, rng, judged)
    for _ in range(40):
        trial_of_sums(rng, judged)
    assert judged.losses == []
    assert judged.counts["accumulator"] > 40


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_dirt_beside_the_sum(world: World, check: Check) -> None:
    rng, judged = np.random.default_rng(5), Judged()
    for _ in range(2):
        check(world, rng, judged)
    assert judged.losses == []
    assert judged.counts.total() > 0


def test_the_judge_sees_what_is_wrong(world: World) -> None:
    """Else the tests above could not fail: no clip, a NaN, a unit that moved another."""
    task, keys = AveragedGradient(world.materials, group_size=3), np.arange(USERS)
    parameters = world.materials.model.initial_parameters()
    unclipped, clipped = (loop(task, parameters, keys, c, 0) for c in (NoClip(), CLIP))
    others, one = (loop(task, parameters, part, CLIP, 0) for part in (keys[1:], keys[:1]))
    updates = [task.update(parameters, task.unit(key, 0), 0).values for key in range(USERS)]
    weights = [1.0] * USERS
    found = Judged()
    check_sum(clipped, weights, 0, CLIP, found)
    check_same(clipped, others, one, clipped, 1.0, CLIP, updates, found)
    assert found.losses == []
    check_sum(unclipped, weights, 0, CLIP, found)
    check_same(clipped, others, one + one, clipped, 1.0, CLIP, updates, found)
    check_estimates(clipped, others + others, 1, CLIP, found)
    next(iter(clipped.values.values())).view(-1)[0] = float("nan")
    check_sum(clipped, weights, 1, CLIP, found)
    said = " ".join(found.losses)
    for words in ("norm ", "others moved by", "fixed moved by", "norm is nan", "num_non_finite"):
        assert words in said
