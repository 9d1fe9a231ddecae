"""The study of black-box audits, on a small text: its rows, and counts that can come out wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedsim.experiments.studies.mahloujifar_2025 import black_box
from tests.conftest import small_config

EVERYBODY: dict[str, dict[str, Any]] = {
    "strategy": {"cohort_size": 24},
    "privacy": {"epsilon": 4.0, "noise_multiplier": None},
}


def test_every_run_of_the_study_is_a_config() -> None:
    configs = {name: black_box.configured(changes) for name, changes in black_box.RUNS.items()}
    assert {config.strategy.name for config in configs.values()} == {"uls", "els"}
    assert {config.privacy.epsilon for config in configs.values()} == {4.0}
    assert sum(config.model.lora_rank > 0 for config in configs.values()) == 1


def test_a_quick_one_has_a_row_and_counts(speeches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(speeches, model={"trainable": "wte"}, **EVERYBODY)
    monkeypatch.setattr(black_box, "configured", lambda *_: config)
    result = black_box.run.compute(True)
    (row,) = result.records
    assert 0.0 <= row["steinke"] <= 4.0
    assert 0.0 <= row["f_dp"] <= 4.0
    assert len(result.more["comparison.csv"]) == 7
    assert all(0 <= count["count"] <= count["of"] for count in result.more["comparison.csv"])
