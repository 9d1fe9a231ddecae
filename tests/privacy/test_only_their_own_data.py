"""One user moves only their own data, from the source file to the clipped sum.

Two files that differ in one user, anywhere in the file, are read, stored, split, planned and
computed. Everybody else brings the same examples, in the same order, with the same dropout masks,
and the sum moves by no more than the user may move it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.clients.engine_choice import choose_engine
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.clipping import FlatClip
from fedsim.config import Config
from fedsim.data.store.manifest import USERS
from fedsim.evaluation.scoring import owners
from fedsim.execution import Task, Unit
from fedsim.materials import Materials, load_materials
from fedsim.plan import RoundPlan
from fedsim.registry import resolve
from fedsim.sampling import FixedSizeSampling, PoissonSampling, Sampling, TruncatedPoissonSampling
from fedsim.seeding import Draws
from fedsim.strategy import build_plan
from fedsim.tensors import l2_norm
from tests.conftest import WORDS, small_config
from tests.contracts.layer_samples import small_model

Row = tuple[str, str]

NEWCOMER, GONE = "newcomer", "user-5"


def _texts() -> list[Row]:
    """18 users with 1 to 9 texts of 1 to 60 words, user after user."""
    rng = np.random.default_rng(11)
    return [
        (f"user-{user}", " ".join(rng.choice(WORDS, rng.integers(1, 61))))
        for user in range(18)
        for _ in range(rng.integers(1, 10))
    ]


ROWS = _texts()
NEW = [(NEWCOMER, " ".join(np.random.default_rng(n).choice(WORDS, 20))) for n in range(6)]


def _interleaved(rows: list[Row]) -> list[Row]:
    """Users in turn; a user's own rows stay in their order."""
    turns: dict[str, list[Row]] = {}
    for row in rows:
        turns.setdefault(row[0], []).append(row)
    longest = max(map(len, turns.values()))
    return [own[n] for n in range(longest) for own in reversed(turns.values()) if n < len(own)]


MIDDLE = next(place for place, (user, _) in enumerate(ROWS) if user == "user-9")
CHANGES: dict[str, list[Row]] = {
    "one more in front": NEW + ROWS,
    "one more in the middle": ROWS[:MIDDLE] + NEW + ROWS[MIDDLE:],
    "one more at the end": ROWS + NEW,
    "one more between all": [NEW[0], *ROWS[:40], *NEW[1:3], *ROWS[40:], *NEW[3:]],
    "one gone": [row for row in ROWS if row[0] != GONE],
    "one renamed": [("another name" if user == GONE else user, text) for user, text in ROWS],
    "users in another order": _interleaved(ROWS),
}
CUTTINGS = ["split", "truncate", "join"]
SELECTIONS = [
    "random",
    "longest",
    "shortest",
    "highest-perplexity",
    "lowest-perplexity",
    "random-chunk",
]
STRATEGIES: dict[str, dict[str, Any]] = {
    "uls": {},
    "uls, local training": {"local": {"task": "fedavg", "epochs": 2, "batch_size": 2}},
    "uls, weighted": {"user_weight_cap": 4},
    "els": {"name": "els", "cohort_size": None, "batch_size": 9},
    "group-privacy": {"name": "group-privacy", "cohort_size": None, "batch_size": 9},
}


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[Row]], Path]:
    """Write rows once."""

    @lru_cache
    def written(rows: tuple[Row, ...]) -> Path:
        path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
        lines = [json.dumps({"author": user, "body": text}) + "\n" for user, text in rows]
        path.write_text("".join(lines), encoding="utf-8")
        return path

    return lambda rows: written(tuple(rows))


def _config(source: Path, cutting: str, strategy: dict[str, Any], **data: object) -> Config:
    return small_config(
        source,
        data={"cutting": cutting, "held_out_examples": 0.3, "held_out_users": 0.2, **data},
        model={"dropout": 0.1},
        strategy=strategy,
    )


@dataclass(frozen=True)
class World:
    """All that a run makes of a file before it draws coins."""

    config: Config
    materials: Materials
    plan: RoundPlan
    task: Task

    @cached_property
    def names(self) -> list[str]:
        lines = (self.materials.store.path / USERS).read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def owner(self, key: int) -> str:
        """Whose unit it is."""
        by_user = self.plan.unit == "user"
        split, store = self.materials.split, self.materials.store
        return self.names[int(split.users[key] if by_user else owners(store, np.array([key]))[0])]

    @lru_cache  # noqa: B019  (a world lives as long as the tests)
    def brought(self, round: int) -> dict[str, list[Any]]:
        """What each user brings if all coins fall, in an order that no place decides."""
        found: dict[str, list[Any]] = {}
        for unit in self.task.units(self.plan.pool, round):
            found.setdefault(self.owner(unit.key), []).append(_told(self.task, unit, round))
        return {name: sorted(units, key=repr) for name, units in found.items()}

    def held_out(self) -> dict[str, list[tuple[int, ...]]]:
        """The held-out examples of each training user, and the users who are held out."""
        store, split = self.materials.store, self.materials.split
        found: dict[str, list[tuple[int, ...]]] = {
            self.names[user]: [(-1,)] for user in split.held_out_users
        }
        for example, user in zip(
            split.held_out_examples, owners(store, split.held_out_examples), strict=True
        ):
            text = tuple(store.example(int(example)).tolist())
            found.setdefault(self.names[user], []).append(text)
        return {name: sorted(texts) for name, texts in found.items()}


def _told(task: Task, unit: Unit, round: int) -> list[Any]:
    """A unit's rows with their streams, weight and, in local training, its steps."""
    streams = [None] * len(unit.lengths) if unit.streams is None else unit.streams.tolist()
    rows = [
        (tuple(row[:length]), stream)
        for row, length, stream in zip(
            unit.tokens.tolist(), unit.lengths.tolist(), streams, strict=True
        )
    ]
    steps = []
    if isinstance(task, LocalSGD):
        steps = [[rows[place] for place in step.tolist()] for step in task.batches(unit, round)]
    return [unit.weight, sorted(rows), steps]


_materials: dict[str, Materials] = {}


def world(config: Config) -> World:
    """Read, store and split, once for each file and model; and plan."""
    key = json.dumps([config.data.model_dump(mode="json"), config.model.model_dump(mode="json")])
    if key not in _materials:
        whole = load_materials(config.seed, config.data, config.model, "cpu")
        _materials[key] = replace(whole, model=small_model(config.model))
    materials = _materials[key]
    plan = build_plan(config, materials)
    task = resolve("tasks", plan.task.name, "task")(materials, **plan.task.options)
    return World(config, materials, plan, task)


def others(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is nobody's who differs between the files."""
    gone = (NEWCOMER, GONE, "another name")
    return {name: what for name, what in found.items() if name not in gone}


WAYS = [  # every unit with every selection that it takes, every strategy with two of them
    *({"selection": selection} for selection in SELECTIONS),
    *(  # a window is no set of examples
        {**STRATEGIES["els"], "selection": selection}
        for selection in SELECTIONS
        if selection != "random-chunk"
    ),
    *(
        {**STRATEGIES[name], "selection": selection}
        for name, selections in {
            "uls, local training": ("random", "random-chunk"),
            "uls, weighted": ("random", "longest"),
            "group-privacy": ("random", "lowest-perplexity"),
        }.items()
        for selection in selections
    ),
]


_worlds: dict[str, World] = {}


def _before(write: Callable[[list[Row]], Path], cutting: str, way: dict[str, Any]) -> World:
    """The world of `ROWS`, the same for every change."""
    key = json.dumps([cutting, way])
    if key not in _worlds:
        _worlds[key] = world(_config(write(ROWS), cutting, way))
    return _worlds[key]


@pytest.mark.parametrize("cutting", CUTTINGS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_everybody_else_brings_the_same(
    write: Callable[[list[Row]], Path], change: list[Row], cutting: str
) -> None:
    """Examples, order, masks, weights and what is held out."""
    for way in WAYS if cutting == "split" else WAYS[:7]:
        before, after = _before(write, cutting, way), world(_config(write(change), cutting, way))
        for round in (0, 3):
            found = before.brought(round)
            assert len(others(found)) > 8
            assert others(after.brought(round)) == others(found), way
        assert others(after.held_out()) == others(before.held_out())
        assert before.brought(0) != before.brought(3)  # so that something could move


@pytest.mark.parametrize("cutting", ["split", "truncate"])
def test_rows_in_another_order_change_nothing(
    write: Callable[[list[Row]], Path], cutting: str
) -> None:
    """A user's own rows too: an example is what it says, not where it stands."""
    shuffled = [ROWS[place] for place in np.random.default_rng(3).permutation(len(ROWS))]
    for way in WAYS:
        if way["selection"] == "random-chunk":
            continue  # of the texts in their order
        before, after = (world(_config(write(rows), cutting, way)) for rows in (ROWS, shuffled))
        assert after.brought(1) == before.brought(1), way
        assert after.held_out() == before.held_out()


@pytest.mark.parametrize(
    "way", [{"held_out_rule": "first"}, {"held_out_rule": "last"}, {"held_out_from": 0.5}], ids=str
)
def test_what_is_held_out_of_a_user_is_so_whoever_else_is_there(
    write: Callable[[list[Row]], Path], way: dict[str, Any]
) -> None:
    for change in CHANGES.values():
        before, after = (world(_config(write(rows), "split", {}, **way)) for rows in (ROWS, change))
        assert others(after.held_out()) == others(before.held_out())


ENGINES = {
    **{f"uls, {name}": ({}, name) for name in ("loop", "materialised", "ghost", "vmap")},
    **{f"els, {name}": (STRATEGIES["els"], name) for name in ("loop", "materialised", "ghost")},
    "local training, loop": (STRATEGIES["uls, local training"], "loop"),
    "many large local steps": (
        {"local": {"task": "fedavg", "epochs": 10, "batch_size": 2, "learning_rate": 0.5}},
        "auto",
    ),
}


@pytest.mark.parametrize(
    ("strategy", "engine", "attention"),
    [
        *((strategy, engine, "eager") for strategy, engine in ENGINES.values()),
        ({}, "materialised", "sdpa"),
    ],
    ids=[*ENGINES, "uls, materialised, fused attention"],
)
def test_the_sum_moves_by_what_one_user_may_move(
    write: Callable[[list[Row]], Path], strategy: dict[str, Any], engine: str, attention: str
) -> None:
    """With every coin fallen. A clip so low that everybody is at the bound."""
    clip = FlatClip(l2_clip_norm=1e-3)
    sums: dict[str, dict[str, torch.Tensor]] = {}
    may = 0.0
    slow = 6 if engine == "auto" else 3 if engine == "loop" and "local" not in strategy else 1
    changes = list(CHANGES.items())[::slow]  # other engines take all of the same units
    for name, rows in {"": ROWS, **dict(changes)}.items():
        config = _config(write(rows), "split", strategy)
        ways = {"dropout": 0.0, "attention": attention}
        config = config.model_copy(update={"model": config.model.model_copy(update=ways)})
        found = world(config)
        compute = choose_engine(engine, found.task, found.materials.model)
        start = found.materials.model.initial_parameters()
        total = compute(found.task, start, found.plan.pool, clip, 2)
        sums[name] = dict(total.values)
        may = found.plan.units_per_user * clip.bound
    for name, values in sums.items():
        moved = l2_norm({key: value - sums[""][key] for key, value in values.items()})
        most = {"": 0.0, "one renamed": 2 * may, "users in another order": 0.0}.get(name, may)
        assert moved <= most * (1 + 1e-4) + 1e-4 * clip.bound, name
        assert moved >= 0.01 * most, name  # so that the bound is one that could be broken


RATE = 0.4


def _laws(count: int) -> list[tuple[Sampling, int]]:
    """Each sampler over so many units, and how many others one unit may displace."""
    return [
        (PoissonSampling(RATE), 0),
        (TruncatedPoissonSampling(RATE, 3, 19), 1),
        (FixedSizeSampling(5, count), 1),
    ]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_with_the_same_coins_the_same_others_are_drawn(change: list[Row]) -> None:
    before, after = (list(dict.fromkeys(user for user, _ in rows)) for rows in (ROWS, change))
    for (law, displaced), (law_after, _) in zip(_laws(len(before)), _laws(len(after)), strict=True):
        found = []
        for one, names in ((law, before), (law_after, after)):
            addresses = np.array([zlib.crc32(name.encode()) for name in names], np.uint64)
            drawn = one.draw(len(names), 0, Draws(4, "seeded").coins(addresses))
            found.append(others({names[place]: 0 for place in drawn}))
        assert len(found[0]) > 1
        assert len(found[0].keys() ^ found[1].keys()) <= 2 * displaced
