"""Dirty gradients of a real network through every engine: who is dirty moves nobody else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import torch

from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example.capture import OpenModel
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.engines.vmap import VmapEngine
from fedsim.clients.tasks.example_gradient import ExampleGradient
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clients.tasks.fedsgd import AveragedGradient
from fedsim.clipping import Clip
from fedsim.execution import Engine, Keys, Task
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials
from fedsim.tensors import Tensors, all_finite
from tests.robustness.dirty.poisoned import PoisonedModel
from tests.robustness.dirty.sums import Judged, check_estimates, check_same, check_sum, random_clip
from tests.robustness.dirty.tiny_world import LONGEST, USERS, mark, tiny_config, vocabulary

FACTORS = (
    *(float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 1e-45, 1e-42, 1e-38, 1e-30),
    *(1e-10, 1e5, 1e10, 1e15, 1e17, 1e20, 1e25, 1e30, -1e35, 1e38, 3e38),
)
ROWS = (float("nan"), float("inf"), float("-inf"), 1e-45, 1e15, 1e20, 1e30, -1e38, 3e38)
_SMALL = 40_000  # bytes: several chunks and passes a call


ENGINES: dict[str, Callable[[LanguageModel], Engine]] = {
    "loop": lambda _: loop,
    "vmap": VmapEngine,
    "materialised": lambda model: materialised(cast(OpenModel, model)),
    "materialised, small": lambda model: materialised(cast(OpenModel, model), _SMALL),
    "ghost": lambda model: ghost(cast(OpenModel, model)),
    "ghost, small": lambda model: ghost(cast(OpenModel, model), _SMALL),
    "auto": lambda model: choose_engine("auto", cast(Task, AveragedGradient), model),
}
LOCAL_ENGINES: dict[str, Callable[[LanguageModel], Engine]] = {"local loop": lambda _: loop}


@dataclass
class World:
    """A tiny model that can be poisoned, its texts, and engines that live from trial to trial."""

    materials: Materials
    model: PoisonedModel
    engines: dict[tuple[str, str], Engine] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, seed: int) -> World:
        """Build one in `folder`."""
        config = tiny_config(folder, seed)
        clean = load_materials(seed, config.data, config.model, "cpu")
        opened = cast(OpenModel, clean.model)
        model = PoisonedModel(clean.model, opened.module.get_submodule("transformer.h.0"))
        materials = Materials(cast(LanguageModel, model), clean.store, clean.split, seed)
        return cls(materials, model)

    def engine(self, task: str, name: str, *, fresh: bool) -> Engine:
        """Return an engine: one that has seen earlier trials, unless a fresh one is asked for."""
        if fresh or (task, name) not in self.engines:
            make = (ENGINES | LOCAL_ENGINES)[name]
            self.engines[task, name] = make(self.materials.model)
        return self.engines[task, name]


def make_tasks(materials: Materials, rng: np.random.Generator) -> dict[str, Task]:
    """Return a task of each kind; local training at a rate that may itself diverge."""
    rate = float(rng.choice([0.1, 0.1, 1e3, 1e20]))
    return {
        "fedsgd": AveragedGradient(materials, group_size=3),
        "fedsgd, weighted": AveragedGradient(materials, group_size=4, user_weight_cap=4),
        "example": ExampleGradient(materials),
        "fedavg": LocalSGD(materials, group_size=4, batch_size=2, epochs=2, learning_rate=rate),
    }


def poison(world: World, rng: np.random.Generator) -> tuple[dict[str, torch.Tensor], str]:
    """Make some gradients dirty; return the parameters to take them at, and a description."""
    words = vocabulary()
    users = rng.choice(USERS, int(rng.integers(0, 4)), replace=False).tolist()
    factors = {
        words[mark(user, kind)]: (float(rng.choice(FACTORS)), float(rng.choice(FACTORS)))
        for user in users
        for kind in rng.choice(["a", "b"], int(rng.integers(1, 3)), replace=False).tolist()
    }
    if rng.random() < 0.5:  # one layer as it is
        side = int(rng.integers(2))
        factors = {w: (1.0, f[1]) if side else (f[0], 1.0) for w, f in factors.items()}
    world.model.poison(factors)
    parameters = world.materials.model.initial_parameters()
    said = f"factors {factors}"
    if rng.random() < 0.3:  # a position that only long examples reach
        name = "transformer.wpe.weight"
        row, value = int(rng.integers(3, LONGEST)), float(rng.choice(ROWS))
        parameters[name][row, int(rng.integers(4))] = value
        said += f", {name}[{row}] = {value}"
    return parameters, said


def trial(world: World, rng: np.random.Generator, judged: Judged) -> None:
    """Poison the network, compute one cohort by every engine of one task, and judge the sums."""
    parameters, said = poison(world, rng)
    tasks = make_tasks(world.materials, rng)
    name = str(rng.choice(list(tasks)))
    task, clip = tasks[name], random_clip(parameters, rng)
    split = world.materials.split
    pool = split.train_examples if name == "example" else np.arange(split.num_users)
    keys = np.sort(rng.choice(pool, min(len(pool), int(rng.integers(1, 10))), replace=False))
    dirty = rng.random(len(keys)) < 0.4  # who is taken out: dirty or not, it must hold
    fresh = bool(rng.random() < 0.3)
    # Local steps of a huge rate make rounding grow: there, only bound and counts say much.
    judged.close = 0.1 if name == "fedavg" else 1e-4
    for engine_name in LOCAL_ENGINES if name == "fedavg" else ENGINES:
        engine = world.engine(name, engine_name, fresh=fresh)
        judged.where = f"{engine_name}, {name}, {clip!r}, {said}, keys {keys}, out {dirty}"
        judged.count(engine_name, len(keys))
        _judge(engine, task, parameters, keys, dirty, clip, judged)
        judged.expect(not getattr(engine, "_refused", False), "gave its layer rules up")


def _judge(
    engine: Engine,
    task: Task,
    parameters: Tensors,
    keys: Keys,
    dirty: np.ndarray,
    clip: Clip,
    judged: Judged,
) -> None:
    round = 0
    try:
        whole = engine(task, parameters, keys, clip, round)
        without = engine(task, parameters, keys[~dirty], clip, round)
        alone = engine(task, parameters, keys[dirty], clip, round)
    except Exception as error:  # whatever it is, it is a loss
        judged.lose(f"raised {type(error).__name__}: {error}")
        return
    units = [task.unit(int(key), round) for key in keys]
    updates = [task.update(parameters, unit, round).values for unit in units]
    finite = np.array([all_finite(update) for update in updates], dtype=bool)
    expected = loop(task, parameters, keys, clip, round)
    for one, of in ((whole, np.full(len(keys), True)), (without, ~dirty), (alone, dirty)):
        weights = [unit.weight for unit, inside in zip(units, of, strict=True) if inside]
        check_sum(one, weights, int((of & ~finite).sum()), clip, judged)
    weight_out = sum(unit.weight for unit, out in zip(units, dirty, strict=True) if out)
    check_same(whole, without, alone, expected, weight_out, clip, updates, judged)
    check_estimates(whole, without, int(dirty.sum()), clip, judged)
