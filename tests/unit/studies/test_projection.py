"""The projection: arithmetic that can be checked by hand, and a page that says what it gives."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fedsim.experiments.projection import (
    FOLD,
    GPU_CASES,
    SERVER_PARTS,
    SETTINGS,
    SUMS,
    Constants,
    Setting,
    project,
    table,
)

ROOT = Path(__file__).parents[3]
BY_HAND = Constants(
    all_parameters=1e14,
    adapters=5e14,
    transfer=1e-8,
    fold=2e-9,
    message=0.01,
    server=2e-8,
    coins=0.05,
)
SMALL = Setting(
    parameters=1e9,
    trainable=1e6,
    cohort_size=100,
    group_size=10,
    sequence_length=100,
    rounds=1000,
    gpus=4,
)


def test_by_hand() -> None:
    """4 × 1e9 × 100,000 tokens over 4 × 5e14 a second; a million out, 4 sums of a million added; a
    million noised. 6 × as many over 4 × 1e14 where all move."""
    made = project(SMALL, BY_HAND, price=2.0)
    assert made.gradients == pytest.approx(0.2)
    assert made.transfer == pytest.approx(0.01 + 4 * (0.01 + 0.002))
    assert made.server == pytest.approx(0.05 + 0.02)
    assert made.hours == pytest.approx(1000 * (0.2 + 0.058 + 0.07) / 3600)
    assert made.cost == pytest.approx(made.hours * 8.0)
    whole = project(dataclasses.replace(SMALL, trainable=1e9), BY_HAND)
    assert whole.gradients == pytest.approx(1.5)


def test_by_collectives() -> None:
    """Four messages; three quarters of a million sent twice, a quarter stored thrice and noised."""
    made = project(dataclasses.replace(SMALL, collective=True), BY_HAND)
    assert made.transfer == pytest.approx(0.04 + 6e6 / 450e9 + 3e6 / 1e9)
    assert made.server == pytest.approx(0.05 + 0.005)


def test_all_parameters_by_collectives_cost_little_more_than_gradients() -> None:
    made = project(SETTINGS["the same, by collectives"], committed())
    assert made.gradients + made.transfer + made.server < 1.15 * made.gradients


def test_constants_are_slopes_of_what_was_measured() -> None:
    """A round of P parameters that takes 0.02 + 2e-8 P seconds on two workers, and so on."""
    rows: list[dict[str, Any]] = [
        {"case": "round/1M", "engine": "ray", "seconds": 0.02 + 0.02},
        {"case": "round/10M", "engine": "ray", "seconds": 0.02 + 0.2},
        {"case": "population/342477", "engine": "ray", "seconds": 0.04 + 0.03 + 0.004},
        *(
            {"case": part, "seconds": 0.1, "details": {"nanoseconds_per_parameter": 10.0}}
            for part in SERVER_PARTS
        ),
        {"case": FOLD, "seconds": 1.0, "details": {"nanoseconds_per_parameter": SUMS * 3.0}},
        *(
            {
                "case": case,
                "engine": engine,
                "seconds": 1.0,
                "details": {"teraflops_per_second": rate},
            }
            for case, of_auto in zip(GPU_CASES, (100.0, 160.0), strict=True)
            for engine, rate in (("floor", 300.0), ("auto", of_auto))
        ),
    ]
    constants = Constants.measured(rows)
    assert constants.all_parameters == pytest.approx(100e12)
    assert constants.adapters == pytest.approx(160e12)
    assert constants.fold == pytest.approx(3e-9)
    assert constants.transfer == pytest.approx(2e-8 - 2 * 3e-9)
    assert constants.message == pytest.approx(0.01)
    assert constants.server == pytest.approx(3e-8)
    assert constants.coins == pytest.approx(0.004)


def committed() -> Constants:
    files = [ROOT / "docs" / "benchmarks" / f"{name}.json" for name in ("gpu", "grids", "server")]
    rows = [row for file in files for row in json.loads(file.read_text("utf-8"))["rows"]]
    return Constants.measured(rows)


def test_the_page_has_the_table_of_the_committed_measurement() -> None:
    page = (ROOT / "docs" / "projection.md").read_text(encoding="utf-8")
    assert table(committed()) in page
    assert all(name in page for name in SETTINGS)
