"""A worker that reads another text or other weights than the server fails the run."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from fedsim.clients.app import app, prepared
from fedsim.config import ModelConfig
from fedsim.grids.build import build_executor
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.materials import load_materials, load_model
from fedsim.strategy import build_plan
from fedsim.tensors import scale
from tests.conftest import small_config, write_rows


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
