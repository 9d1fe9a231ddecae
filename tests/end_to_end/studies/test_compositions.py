"""Task, clip, estimator, optimizer, model and noise are values that compose: whole runs of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.config import ModelConfig
from fedsim.evaluation.metrics import evaluate
from fedsim.materials import load_materials, load_model
from fedsim.runner.folder import RunFolder
from tests.conftest import small_config
from tests.helpers.light import light_config

RUNS: dict[str, dict[str, dict[str, Any]]] = {
    "fedavg, per-layer, clipped denominator, weights": {
        "strategy": {
            "local": {"task": "fedavg", "batch_size": 2},
            "clip": {"kind": "per-layer", "l2_clip_norm": 0.5},
            "estimator": {"kind": "clipped", "min_weight": 10.0},
            "user_weight_cap": 4,
        },
        "server": {"optimizer": "sgd", "learning_rate": 1.0},
    },
    "els, normalised, adafactor, joined texts": {
        "data": {"cutting": "join"},
        "strategy": {
            "name": "els",
            "cohort_size": None,
            "batch_size": 6,
            "clip": {"kind": "flat", "l2_clip_norm": 0.5, "normalise": True},
        },
        "server": {"optimizer": "adafactor", "learning_rate": 0.01},
    },
    "lora, secure noise, declared population": {
        "model": {"lora_rank": 2, "trainable": "all"},
        "privacy": {"noise": "secure", "declared_num_users": 30},
    },
    "mcmahan-lstm": {
        "model": {"name_or_path": "mcmahan-lstm", "trainable": "lstm|projection|hidden"},
        "strategy": {"cohort_size": 3},
    },
    "non-private, by user": {"strategy": {"name": "non-private"}},
    "non-private, by example": {
        "strategy": {"name": "non-private", "cohort_size": None, "batch_size": 7}
    },
    "bfloat16, dropout": {"model": {"dropout": 0.1}, "executor": {"precision": "bfloat16"}},
    "no held-out text": {"data": {"held_out_examples": 0.0}},
}


@pytest.mark.parametrize("sections", RUNS.values(), ids=RUNS)
def test_a_whole_run(sections: dict[str, dict[str, Any]], speeches: Path, tmp_path: Path) -> None:
    short = {"rounds": 2, **sections.get("strategy", {})}
    make = small_config if "name_or_path" in sections.get("model", {}) else light_config
    config = make(speeches, **{**sections, "strategy": short})
    out = fedsim.run(config, tmp_path / "run").path
    report = fedsim.load_report(out)
    private = config.strategy.name != "non-private"
    assert (report.privacy.epsilon is not None) == private
    assert ("No privacy guarantee" in report.privacy.statement) != private
    assert (out / "report.html").exists()
    ledger = fedsim.Ledger.from_json(json.loads((out / "ledger.json").read_text(encoding="utf-8")))
    assert ledger.num_releases == 2
    assert report.cost.rounds == 2
    assert report.machine["precision"] == config.executor.precision
    data_seed = RunFolder(out).data_seed(config)
    materials = load_materials(config.seed, config.data, config.model, "cpu", data_seed)
    trained = materials.store.lengths(materials.split.train_examples)
    assert (report.data.examples, report.data.tokens) == (len(trained), trained.sum())
    saved = load_model(
        ModelConfig(name_or_path=str(out / "model")), sequence_length=config.data.sequence_length
    )
    assert saved.unknown_token_id == materials.model.unknown_token_id
    score = evaluate(
        saved, saved.initial_parameters(), materials.store, materials.split.held_out_examples
    )
    assert score.loss == pytest.approx(report.utility.final.loss, abs=1e-6, nan_ok=True)
    assert score.accuracy_top1 == pytest.approx(report.utility.final.accuracy_top1, nan_ok=True)
