"""Two runs that differ share neither coins nor noise, though their seeds are equal."""

from __future__ import annotations

import copy
import importlib
import json
import shutil
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsim import registry
from fedsim.clients.app import app, prepared
from fedsim.config import Config, ExecutorConfig, ModelConfig, TrainingConfig, with_settings
from fedsim.errors import ConfigError
from fedsim.grids.executor import GridExecutor, build_executor
from fedsim.grids.in_process import InProcessGrid
from fedsim.materials import Materials, load_materials, load_model
from fedsim.plan import RoundPlan, TaskSpec
from fedsim.registry import distribution
from fedsim.strategies import uls
from fedsim.strategy import build_plan
from fedsim.tensors import scale
from tests.conftest import small_config, write_rows
from tests.end_to_end.grids.ray_runs import plugin

STRATEGIES: dict[str, dict[str, Any]] = {
    "uls": {},
    "els": {"name": "els", "cohort_size": None, "batch_size": 9},
    "group-privacy": {"name": "group-privacy", "cohort_size": None, "batch_size": 9},
}
CHANGES = [
    "privacy.noise_multiplier=2.0",
    "server.learning_rate=0.5",
    "strategy.clip.l2_clip_norm=0.7",
    "strategy.rounds=5",
    "data.held_out_limit=3",
    "executor.precision='bfloat16'",
    "seed=1",
]


def noise(config: Config, materials: Materials) -> list[float]:
    return [float(x) for x in build_plan(config, materials).draws.noise(3).chunk("", 0).random(20)]


def coins(config: Config, materials: Materials) -> list[float]:
    return [float(x) for x in build_plan(config, materials).draws.coins(3).random(20)]


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("change", CHANGES)
def test_another_config_is_another_draw(
    materials: Materials, speeches: Path, strategy: dict[str, Any], change: str
) -> None:
    """With one noise for both, the difference of two releases would show the sum of the cohort."""
    first = small_config(speeches, strategy=strategy)
    second = with_settings(first, [change])
    assert noise(first, materials) == noise(first, materials)
    assert not set(noise(first, materials)) & set(noise(second, materials))
    assert not set(coins(first, materials)) & set(coins(second, materials))
    ids = [build_plan(config, materials).draws.release_id for config in (first, second)]
    assert ids[0] != ids[1] and all(name.startswith("seeded:") for name in ids)


def test_who_computes_and_when_it_is_saved_changes_no_release(
    materials: Materials, speeches: Path
) -> None:
    first = small_config(speeches)
    second = with_settings(first, ["executor.shard_size=3", "training.checkpoint_every=1"])
    assert noise(first, materials) == noise(second, materials)
    assert coins(first, materials) == coins(second, materials)


def test_a_new_key_of_these_sections_must_be_decided_about() -> None:
    """Whether it changes what is released; then `release_seed` has to name it."""
    named = {"precision", "private_evaluation"}
    elsewhere = {"grid", "workers", "cpus_per_worker", "gpus_per_worker", "address", "shard_size"}
    same_sums = {"engine", "checkpointing"}  # up to rounding
    looks = {"evaluate_every", "checkpoint_every", "keep_checkpoints", "trackers"}
    keys = set(ExecutorConfig.model_fields) | set(TrainingConfig.model_fields)
    assert keys == named | elsewhere | same_sums | looks


def test_the_same_config_on_other_texts_is_another_draw(tmp_path: Path) -> None:
    """A run of this month's text minus one of last month's would show what a user changed."""
    rows = [{"author": f"user-{n}", "body": "the king shall ride to war"} for n in range(12)] * 2
    path = tmp_path / "speeches.jsonl"
    drawn = []
    for last in ("the king", "a queen", "the king"):  # as many users and examples each time
        rows[-1]["body"] = f"{last} shall ride to war"
        write_rows(path, rows)
        config = small_config(path, data={"held_out_examples": 0.0})
        found = load_materials(config.seed, config.data, config.model, "cpu")
        drawn.append((noise(config, found), coins(config, found)))
    assert drawn[0] == drawn[2]
    assert not set(drawn[0][0]) & set(drawn[1][0])
    assert not set(drawn[0][1]) & set(drawn[1][1])


def test_no_worker_answers_for_a_text_that_the_server_does_not_have(tmp_path: Path) -> None:
    """Both keep what they loaded; a file that changes between two runs is read again."""
    path = tmp_path / "speeches.jsonl"
    rows = [{"author": f"user-{n}", "body": "the king shall ride to war"} for n in range(12)] * 2
    specs = []
    for kept in (rows, rows[1:]):
        write_rows(path, kept)
        config = small_config(path)
        loaded = load_materials(config.seed, config.data, config.model, "cpu")
        plan = build_plan(config, loaded)
        executor = build_executor(config, loaded, plan, InProcessGrid(app), "cpu")
        specs.append(cast("GridExecutor", executor).spec)
        _, _, of_worker = prepared(specs[-1])
        assert of_worker.text_digest == loaded.text_digest
        assert of_worker.store.num_examples == len(kept)
    aliases = tmp_path / "aliases.json"
    users = []
    for same in ({}, {"user-1": "user-0"}):
        aliases.write_text(json.dumps(same), encoding="utf-8")
        step = {"step": "merge-users", "file": str(aliases)}
        config = small_config(path, data={"preparation": [step]})
        split = load_materials(config.seed, config.data, config.model, "cpu").split
        users.append(split.num_users)
    assert users == [12, 11]
    with pytest.raises(RuntimeError, match="this worker reads another text there than the server"):
        prepared.__wrapped__(specs[0])


def test_no_worker_computes_with_other_frozen_weights_than_the_server(
    speeches: Path, tmp_path: Path
) -> None:
    """Only what moves is sent: who else is there would decide which network computes a user."""
    folder, specs = tmp_path / "base", []

    class Elsewhere(InProcessGrid):
        pass

    start = load_model(ModelConfig(name_or_path="tiny-gpt", pretraining_steps=0))
    for factor in (1.0, 1.1):
        start.save(scale(start.initial_parameters(), factor), folder)
        config = small_config(
            speeches, model={"name_or_path": str(folder), "pretraining_steps": None, "lora_rank": 2}
        )
        loaded = load_materials(config.seed, config.data, config.model, "cpu")
        plan = build_plan(config, loaded)
        executor = build_executor(config, loaded, plan, Elsewhere(app), "cpu")
        specs.append(cast("GridExecutor", executor).spec)
        prepared.__wrapped__(specs[-1])
    with pytest.raises(RuntimeError, match="this worker reads other weights there than the server"):
        prepared.__wrapped__(specs[0])


def test_no_worker_computes_with_another_plug_in_than_the_server(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is started again, after the file was edited, imports what is there now."""
    code = "from fedsim.clients.tasks.fedsgd import AveragedGradient as Task"
    entry = {"fedsim.tasks swapped": "swapped:Task"}
    site = plugin(tmp_path / "site", code, entry, name="swapped")
    monkeypatch.syspath_prepend(site)
    config = small_config(speeches)
    loaded = load_materials(config.seed, config.data, config.model, "cpu")
    plan = build_plan(config, loaded)
    plan = replace(plan, task=TaskSpec(name="swapped", options=plan.task.options))
    executor = build_executor(config, loaded, plan, InProcessGrid(app), "cpu")
    spec = cast("GridExecutor", executor).spec
    prepared.__wrapped__(spec)
    (site / "swapped.py").write_text(f"{code}  # edited", encoding="utf-8")
    restart(monkeypatch)
    with pytest.raises(RuntimeError, match="this worker would compute with "):
        prepared.__wrapped__(spec)


def test_the_same_config_on_other_weights_is_another_draw(
    materials: Materials, speeches: Path, tmp_path: Path
) -> None:
    """Frozen weights too: a gradient is a function of all of them."""
    folder = tmp_path / "model"
    materials.model.save(materials.model.initial_parameters(), folder)
    config = small_config(speeches, model={"name_or_path": str(folder), "pretraining_steps": None})
    before = noise(config, materials)
    assert noise(config, materials) == before
    weights = load_file(folder / "model.safetensors")
    weights[min(weights)] += 1.0
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert not set(noise(config, materials)) & set(before)


def test_other_weights_of_the_same_name_are_another_draw(
    materials: Materials, speeches: Path
) -> None:
    """Of a built-in model or a hub id, which have no files: the weights are looked at."""
    config = small_config(speeches)
    before = noise(config, materials), coins(config, materials)
    for frozen in (False, True):
        model = copy.deepcopy(materials.model)
        names = model.initial_parameters().keys()
        module = model.module  # type: ignore[attr-defined]
        own = dict(module.named_parameters())
        changed = next(name for name in own if (name not in names) == frozen)
        with torch.no_grad():
            own[changed] += 1.0
        other = replace(materials, model=model)
        assert not set(noise(config, other)) & set(before[0])
        assert not set(coins(config, other)) & set(before[1])
    assert noise(config, replace(materials, model=copy.deepcopy(materials.model))) == before[0]


@pytest.mark.parametrize("package", ["fedsim-dp", "torch", "transformers", "numpy"])
def test_another_version_of_what_computes_is_another_draw(
    materials: Materials, speeches: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradients may differ in any bit, and then the difference of two releases shows them."""
    config = small_config(speeches)
    before = noise(config, materials)
    monkeypatch.setattr(
        "fedsim.release_seed.version",
        lambda name: "99.0" if name == package else metadata.version(name),
    )
    assert not set(noise(config, materials)) & set(before)


def test_another_version_of_a_plug_in_is_another_draw(
    materials: Materials, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config(speeches)
    before = noise(config, materials)
    monkeypatch.setattr("fedsim.registry.distribution", lambda group, name: "other 2.0")
    assert not set(noise(config, materials)) & set(before)


PLUG_IN = """
from dataclasses import replace
from fedsim.strategies import uls

def build(config, materials):
    plan = uls.build(config, materials)
    return replace(plan, pool=plan.pool)
"""


def restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process see a plug-in's files for the first time, as a new one would."""
    monkeypatch.setattr(registry, "_FIRST_SEEN", {})


def test_an_edited_plug_in_of_the_same_version_is_another_draw(
    materials: Materials, speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source is part of the seed; so is its pool, which may come from anywhere."""
    entry = {"fedsim.strategies edited": "edited:build"}
    site = plugin(tmp_path / "site", PLUG_IN, entry, name="edited")
    monkeypatch.syspath_prepend(site)
    config = small_config(speeches, strategy={"name": "edited"})
    before = noise(config, materials)
    assert noise(config, materials) == before
    (site / "edited.py").write_text(PLUG_IN + "# edited\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="plug-in 'edited': its files changed since this process"):
        noise(config, materials)  # which computes with what it imported
    restart(monkeypatch)
    assert noise(config, materials) != before
    (site / "edited.py").write_text(PLUG_IN, encoding="utf-8")
    restart(monkeypatch)
    assert noise(config, materials) == before
    (site / "edited.py").unlink()
    with pytest.raises(ConfigError, match=r"edited\.py is gone since this process imported it"):
        noise(config, materials)
    (site / "edited.py").write_text(PLUG_IN, encoding="utf-8")

    def backwards(config: Config, materials: Materials) -> RoundPlan:
        return replace(
            uls.build(config, materials), pool=np.arange(materials.split.num_users)[::-1]
        )

    monkeypatch.setattr(importlib.import_module("edited"), "build", backwards)
    assert noise(config, materials) != before


def test_every_file_of_a_plug_in_and_its_place_is_part_of_the_seed(
    materials: Materials, speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads too: a table beside its code may decide what a unit adds."""
    entry = {"fedsim.strategies placed": "placed:build"}
    site = plugin(tmp_path / "site", "", entry, name="placed")
    (site / "placed.py").unlink()
    (site / "placed" / "inner").mkdir(parents=True)
    (site / "placed" / "__init__.py").write_text(PLUG_IN + "build2 = build\n", encoding="utf-8")
    (site / "placed" / "inner" / "table.json").write_text("1")
    monkeypatch.syspath_prepend(site)
    config = small_config(speeches, strategy={"name": "placed"})
    drawn = [noise(config, materials)]
    (site / "placed" / "inner" / "table.json").write_text("2")
    restart(monkeypatch)
    drawn.append(noise(config, materials))
    (site / "placed" / "inner").rename(site / "placed" / "other")
    restart(monkeypatch)
    drawn.append(noise(config, materials))
    installed = site / "placed-1.0.dist-info"
    before = installed.rename(site / "before")  # as an installer does it
    shutil.copytree(before, installed)
    (installed / "entry_points.txt").write_text("[fedsim.strategies]\nplaced = placed:build2\n")
    drawn.append(noise(config, materials))
    assert len({tuple(values) for values in drawn}) == 4


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("top_level.txt", "helped\nhelper\n"),  # of an editable install, which lists no code
        ("RECORD", "helped.py,,\nhelper.py,,\nhelped-1.0.dist-info/METADATA,,\n"),
    ],
)
def test_every_module_of_a_plug_in_is_part_of_the_seed(
    materials: Materials,
    speeches: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    content: str,
) -> None:
    """What its entry point imports from beside it decides what a unit adds, too."""
    entry = {"fedsim.strategies helped": "helped:build"}
    site = plugin(tmp_path / "site", f"import helper\n{PLUG_IN}", entry, name="helped")
    (site / "helped-1.0.dist-info" / file).write_text(content)
    (site / "helper.py").write_text("SCALE = 1.0\n")
    monkeypatch.syspath_prepend(site)
    config = small_config(speeches, strategy={"name": "helped"})
    before = noise(config, materials)
    assert noise(config, materials) == before
    (site / "helper.py").write_text("SCALE = 0.5\n")
    with pytest.raises(ConfigError, match="plug-in 'helped': its files changed since this process"):
        noise(config, materials)
    restart(monkeypatch)
    assert not set(noise(config, materials)) & set(before)
    for module in ("helped", "helper"):
        sys.modules.pop(module, None)


def test_the_loader_that_a_saved_folder_asks_for_is_part_of_the_seed(
    materials: Materials, speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    materials.model.save(materials.model.initial_parameters(), folder)
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**content, "fedsim_model": "tiny-gpt"}))
    model = {"name_or_path": str(folder), "pretraining_steps": None}
    config = small_config(speeches, model=model)
    before = noise(config, materials)

    def other(group: str, name: str) -> str:
        changed = (group, name) == ("models", "tiny-gpt")
        return "another version" if changed else distribution(group, name)

    monkeypatch.setattr("fedsim.registry.distribution", other)
    assert noise(config, materials) != before


def test_all_bits_of_the_digest_are_used(materials: Materials, speeches: Path) -> None:
    seeds = [
        build_plan(small_config(speeches, server={"learning_rate": 0.1 + n}), materials).seed
        for n in range(20)
    ]
    together = 0
    for seed in seeds:
        assert 0 <= seed < 2**128
        together |= seed
    assert together.bit_length() > 120


def test_another_secret_is_another_draw(materials: Materials, speeches: Path) -> None:
    """What a strategy draws from the run's seed is secret where noise is."""
    config = small_config(speeches, privacy={"noise": "secure"})
    first, other = (build_plan(config, replace(materials, seed=seed)).seed for seed in (1, 2))
    assert first != other


def test_another_noise_level_of_the_same_config_is_another_draw(
    materials: Materials, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calibration may give another number tomorrow: two levels of one noise give the sum away."""
    promise = {"epsilon": 4.0, "noise_multiplier": None}
    config = small_config(speeches, privacy=promise)
    before = build_plan(config, materials)
    louder = replace(before, noise_multiplier=1.01 * before.noise_multiplier)
    monkeypatch.setattr("fedsim.strategy.resolve", lambda *_: lambda *_: louder)
    after = build_plan(config, materials)
    assert after.seed != before.seed
    assert after.draws.noise(0) != before.draws.noise(0)


def test_other_settings_of_a_network_with_the_same_weights_are_another_draw(
    materials: Materials, speeches: Path
) -> None:
    config = small_config(speeches)
    model = copy.deepcopy(materials.model)
    model.module.config.layer_norm_epsilon = 0.1  # type: ignore[attr-defined]
    other = replace(materials, model=model)
    assert not set(noise(config, other)) & set(noise(config, materials))
