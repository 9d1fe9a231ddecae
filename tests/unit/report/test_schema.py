"""`fedsim.report.schema`: what is accepted, what is refused, and how it says so."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fedsim.errors import ConfigError
from fedsim.report.schema import (
    RoundMetrics,
    RoundSummary,
    Utility,
    load_metrics,
    load_report,
    save_report,
)
from tests.unit.report.report_samples import metrics, privacy, report, scores, write_run


def test_a_report_and_its_metrics_survive_the_round_trip(tmp_path: Path) -> None:
    run, lines = report(), metrics()
    write_run(tmp_path, run, lines)
    assert load_report(tmp_path) == run
    assert load_metrics(tmp_path) == tuple(lines)


def test_a_diverged_run_is_valid_json_and_reads_back(tmp_path: Path) -> None:
    bad = scores(3.0).model_copy(update={"loss": math.nan, "perplexity": math.inf})
    save_report(tmp_path, report(utility=Utility(initial=scores(3.3), final=bad)))

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)
    final = load_report(tmp_path).utility.final
    assert math.isnan(final.loss)
    assert final.perplexity == math.inf


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": math.inf},
        {"epsilon": -1.0},
        {"sampler": ""},
    ],
)
def test_a_promise_has_numbers_in_their_range(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        privacy(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": {"gradients": -1}}, "cost.gradients"),
        ({"cost": {"gradients": 1.5}}, "cost.gradients"),
        ({"format": 2}, "format"),
        ({"privacy": {"epsilon": "8"}}, "privacy.epsilon"),
        ({"privacy": {"epsilonn": 1.0}}, "privacy.epsilonn"),
        ({"data": {"dropped": {"empty": "three"}}}, "data.dropped.empty"),
        ({"privacy": None}, "privacy"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    raw = json.loads(report().model_dump_json())
    for key, value in change.items():
        raw[key] = {**raw[key], **value} if isinstance(value, dict) else value
    (tmp_path / "report.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=message) as caught:
        load_report(tmp_path)
    assert str(tmp_path / "report.json") in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_damaged_or_missing_file_is_a_config_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ConfigError, match=r"report\.json"):
        load_report(tmp_path)
    with pytest.raises(ConfigError, match="does not exist or cannot be read"):
        load_report(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl: does not exist"):
        load_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"round": 0}\n\n{"losss": 3}')
    with pytest.raises(ConfigError, match=r"line 3: round: give .*; further errors: 1\. The file "):
        load_metrics(tmp_path)


def test_blank_lines_are_skipped_and_nan_of_json_dumps_is_read(tmp_path: Path) -> None:
    line = {"round": 1, "units": 0, "estimate_norm": math.nan}
    (tmp_path / "metrics.jsonl").write_text("\n" + json.dumps(line) + "\n\n")
    (only,) = load_metrics(tmp_path)
    assert only.estimate_norm is not None and math.isnan(only.estimate_norm)


@pytest.mark.parametrize(
    ("ratios", "signal"),
    [
        ([1.25, 1.25], 0.75),  # 1.25² = 1 + 0.75²
        ([1.0008] * 40, 0.04),
        ([1.0001] * 40, 0.0),  # noise alone: ± √(2 / 40,000,000) / 2
        ([0.99], 0.0),
        ([1e200], 1e200),
        ([], None),
    ],
)
def test_signal_is_what_releases_have_beyond_their_noise(
    ratios: list[float], signal: float | None
) -> None:
    lines = [
        RoundMetrics(round=number, units=4, clipped=number % 2, release_over_noise=ratio)
        for number, ratio in enumerate(ratios)
    ]
    summary = RoundSummary.of([*lines, RoundMetrics(round=99)], 1_000_000)
    found = summary.signal_over_noise
    assert found == (None if signal is None else pytest.approx(signal, rel=0.01))
    shares = {0: None, 1: 0.0, 2: 0.125, 40: 0.125}
    assert summary.clipped_share == shares[len(ratios)]
