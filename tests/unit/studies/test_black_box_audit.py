"""The study of black-box audits, on a small text: its rows, and counts that can come out wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.audit.black_box import Attack
from fedsim.experiments.studies.mahloujifar_2025 import black_box
from fedsim.materials import Materials
from fedsim.strategy import build_plan
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


def test_counts_see_scores_that_know_the_coins(
    materials: Materials, speeches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where "thrown anew" throws the same coins again, every one of them shows something."""
    config = small_config(speeches, **EVERYBODY)
    coins = np.random.default_rng(0).random(60) < 0.5
    first = Attack(config, build_plan(config, materials), 1e-4, coins.astype(float), coins)
    rows = {row["game"]: row["count"] for row in black_box.counts(first, 60, 4, 6)}
    assert rows["f-DP shows more than 0 of coins thrown anew"] <= 2
    monkeypatch.setattr(np.random, "default_rng", lambda _: Same(coins))
    rows = {row["game"]: row["count"] for row in black_box.counts(first, 60, 4, 6)}
    assert rows["f-DP shows more than 0 of coins thrown anew"] == 6
    assert rows["(ε, δ)-DP shows more than 0 of coins thrown anew"] == 6


class Same:
    """A generator whose every throw has the same coins."""

    def __init__(self, coins: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        self._coins = coins

    def random(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.where(self._coins[:size], 0.0, 1.0)

    def normal(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.linspace(0.0, 1.0, size)
