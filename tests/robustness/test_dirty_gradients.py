"""A user whose gradient is NaN, infinite, huge or tiny moves nobody else, in any engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.tasks.example_gradient import ExampleGradient
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clip_policy import AdaptiveClip
from fedsim.clipping import Clip, FlatClip, NoClip, NormalisedClip, PerLayerClip, layers_of
from fedsim.estimators import ClippedDenominator, FixedDenominator, WeightedSum
from fedsim.evaluation.metrics import evaluate
from fedsim.execution import Accumulator, Engine, Task, Update
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials
from fedsim.seeding import noise_key
from fedsim.tensors import Tensors, all_finite, l2_norm, scale
from tests.contracts.definition import CLIP_MARGIN
from tests.contracts.test_engines import ENGINES
from tests.helpers.tiny_world import LONGEST, USERS, mark, tiny_config, vocabulary
from tests.robustness.poisoned import PoisonedModel

FACTORS = (
    *(math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-45, 1e-42, 1e-38, 1e-30, 1e-10),
    *(1e5, 1e10, 1e15, 1e17, 1e20, 1e25, 1e30, -1e35, 1e38, 3e38),
)
VALUES = (math.nan, math.inf, -math.inf, 0.0, 1e-45, -1e-40, 1e-20, 1.0, -1e19, 1e30, -3.4e38)
MARGIN = 3e-6  # of the bound: float32 arithmetic of the engines
LAYOUT = {"a.weight": torch.zeros(3, 4), "a.bias": torch.zeros(4), "b.weight": torch.zeros(5)}


@dataclass(frozen=True)
class World:
    """A tiny model that can be poisoned, and its texts."""

    materials: Materials
    model: PoisonedModel

    def poison(self, factors: dict[int, tuple[float, float]]) -> None:
        """Set the factors of gradients by user."""
        words = vocabulary()
        self.model.poison({words[mark(u, k)]: f for u, f in factors.items() for k in "ab"})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    config = tiny_config(tmp_path_factory.mktemp("world"), 0)
    clean = load_materials(0, config.data, config.model, "cpu")
    block = cast(OpenModel, clean.model).module.get_submodule("transformer.h.0")
    model = PoisonedModel(clean.model, block)
    materials = Materials(cast(LanguageModel, model), clean.store, clean.split, 0)
    return World(materials, model)


TASKS: dict[str, Callable[[Materials], Task]] = {
    "fedsgd": lambda materials: AveragedGradient(materials, group_size=3),
    "fedsgd, weighted": lambda materials: AveragedGradient(
        materials, group_size=4, user_weight_cap=4
    ),
    "example": ExampleGradient,
    "fedavg": lambda materials: LocalSGD(
        materials, group_size=4, batch_size=2, epochs=2, learning_rate=0.1
    ),
}


def clips(parameters: Tensors) -> list[Clip]:
    flat = FlatClip(l2_clip_norm=0.01)
    layered = PerLayerClip.evenly(0.01, layers_of(parameters))
    return [flat, layered, NormalisedClip(clip=layered), NoClip()]


def check_sums(sums: Sequence[WeightedSum], norms: Sequence[float], clip: Clip) -> None:
    """Check that whole = without + alone, within the bound, and both estimators' sensitivity."""
    whole, without, alone = sums
    rest = {n: v - without.values[n] for n, v in whole.values.items()}
    moved = {n: v - alone.values[n] for n, v in rest.items()}
    finite = [norm for norm in norms if math.isfinite(norm)]
    lengths = [norm if clip.kind == "none" else clip.bound for norm in finite]
    slack = (2 * CLIP_MARGIN + 1e-4) * math.fsum(lengths)
    assert l2_norm(moved) <= slack
    assert whole.num_units == without.num_units + alone.num_units == len(norms)
    assert whole.num_non_finite == without.num_non_finite + alone.num_non_finite
    assert whole.weight == pytest.approx(without.weight + alone.weight)
    assert math.isfinite(whole.loss)
    if clip.kind == "none":
        return
    # Of norms over 1e19 the square is not finite in float32: fast engines count them as zero.
    too_large = sum(not norm < 1e19 for norm in norms)
    assert len(norms) - len(finite) <= whole.num_non_finite <= too_large
    assert l2_norm(whole.values) <= clip.bound * whole.weight * (1 + MARGIN)
    for estimator in (FixedDenominator(0.3, 11.0), ClippedDenominator(0.3, 6.0)):
        left, right = (scale(s.values, estimator.factor(s)) for s in (whole, without))
        most = alone.num_units * estimator.sensitivity(clip.bound)
        difference = l2_norm({n: left[n] - right[n] for n in left})
        assert difference <= most + MARGIN * (most + l2_norm(left) + l2_norm(right))


@pytest.mark.parametrize(
    ("engine_name", "name"),
    [("loop", "fedavg"), *((e, n) for e in ENGINES for n in TASKS if n != "fedavg")],
)
def test_dirty_users_move_nobody_else(world: World, engine_name: str, name: str) -> None:
    rng, materials = np.random.default_rng(5), world.materials
    task, engine = TASKS[name](materials), ENGINES[engine_name](materials.model)
    parameters = materials.model.initial_parameters()
    pool = materials.split.train_examples if name == "example" else np.arange(USERS)
    for trial, clip in enumerate(clips(parameters)):
        dirty = rng.choice(USERS, 3, replace=False).tolist()
        world.poison({user: tuple(rng.choice(FACTORS, 2).tolist()) for user in dirty})
        keys = np.sort(rng.choice(pool, 8, replace=False))
        out = rng.random(8) < 0.4
        sums = [engine(task, parameters, part, clip, trial) for part in (keys, keys[~out])]
        alone = engine(task, parameters, keys[out], clip, trial)
        units = [task.unit(int(key), trial) for key in keys]
        updates = [task.update(parameters, unit, trial).values for unit in units]
        norms = [l2_norm(u) if all_finite(u) else math.inf for u in updates]
        check_sums([*sums, alone], norms, clip)
    world.poison({})


@pytest.mark.parametrize("make_engine", [e for name, e in ENGINES.items() if name != "vmap"])
def test_a_longer_neighbour_drops_nobody(
    world: World, make_engine: Callable[[LanguageModel], Engine]
) -> None:
    """A position that only long texts reach overflows; short texts beside them stay finite.

    Not under `vmap`, where a text's own padding reaches it.
    """
    parameters = world.materials.model.initial_parameters()
    parameters["transformer.wpe.weight"][LONGEST - 2] = 3e38 * torch.tensor([1.0, -1.0, 1.0, 1.0])
    task, keys = AveragedGradient(world.materials, group_size=9), np.arange(USERS)
    updates = [task.update(parameters, task.unit(key, 0), 0).values for key in range(USERS)]
    finite = np.array([all_finite(update) for update in updates])
    assert 0 < finite.sum() < USERS
    clip = FlatClip(l2_clip_norm=0.01)
    engine = make_engine(world.materials.model)
    whole, clean = (engine(task, parameters, part, clip, 0) for part in (keys, keys[finite]))
    assert (whole.num_non_finite, clean.num_non_finite) == (USERS - finite.sum(), 0)
    difference = {n: v - clean.values[n] for n, v in whole.values.items()}
    assert l2_norm(difference) < CLIP_MARGIN * l2_norm(clean.values)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_dirty_updates_move_no_others_in_the_accumulator(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 8))
    updates = []
    for _ in range(size):
        dtype = (torch.float32, torch.float64, torch.bfloat16)[int(rng.integers(3))]
        update = {n: torch.randn(v.shape) * float(rng.choice(VALUES)) for n, v in LAYOUT.items()}
        update["a.bias"][1] = float(rng.choice(VALUES))
        updates.append({n: v.to(dtype) for n, v in update.items()})
    weights, out = rng.choice([0.0, 0.3, 1.0], size), rng.random(size) < 0.4
    for clip in clips(LAYOUT)[:3]:
        sums = []
        for included in (out | ~out, ~out, out):
            accumulator = Accumulator(LAYOUT, clip)
            for index in np.flatnonzero(included):
                added = Update(updates[index], float(rng.choice(VALUES)), 1)
                accumulator.add(added, float(weights[index]))
            sums.append(accumulator.total())
        norms = [1.0 if all_finite(update) else math.inf for update in updates]
        check_sums(sums, norms, clip)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_broken_parameters_have_a_loss_that_says_so_and_the_clip_stays_a_number(
    world: World, value: float
) -> None:
    parameters = world.materials.model.initial_parameters()
    task, keys = AveragedGradient(world.materials, group_size=3), np.arange(USERS)
    parameters["transformer.wpe.weight"][1] = value
    materials = world.materials
    split = materials.split.held_out_examples
    found = evaluate(materials.model, parameters, materials.store, split)
    assert found.tokens > 0 and not found.loss < 0.0
    total = loop(task, parameters, keys, FlatClip(l2_clip_norm=0.01), 0)
    after = AdaptiveClip(0.5, 0.2, 1.0, 5.0).after(0, 1.0, total, noise_key(0, "clip", 0))
    assert 1e-9 <= after.scale <= 1e9 and math.isfinite(after.released_share or 0.0)


def test_the_checks_see_a_unit_that_moves_another_and_a_lost_bound(world: World) -> None:
    task, keys = AveragedGradient(world.materials, group_size=3), np.arange(USERS)
    parameters = world.materials.model.initial_parameters()
    clip = FlatClip(l2_clip_norm=0.01)
    whole, others, one = (
        loop(task, parameters, part, clip, 0) for part in (keys, keys[1:], keys[:1])
    )
    check_sums((whole, others, one), [1.0] * USERS, clip)
    unclipped = [loop(task, parameters, part, NoClip(), 0) for part in (keys, keys[1:], keys[:1])]
    uncounted = replace(one, num_units=2)
    twice = replace(one, values={n: 2 * v for n, v in one.values.items()})
    wrong = [(whole, others, twice), (whole, others, uncounted), tuple(unclipped)]
    for sums in wrong:
        with pytest.raises(AssertionError):
            check_sums(sums, [1.0] * USERS, clip)
