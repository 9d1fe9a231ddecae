"""A run with every option of the server's step: what is evaluated, saved and reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedsim
from fedsim.report.schema import load_metrics
from fedsim.runner.checkpoint import load_checkpoint
from tests.helpers.light import EVERY_SERVER_OPTION, light_config


def test_the_average_is_evaluated_and_saved_and_the_settings_are_reported(
    speeches: Path, tmp_path: Path
) -> None:
    config = light_config(speeches, server=EVERY_SERVER_OPTION, training={"evaluate_every": 1})
    out = fedsim.run(config, tmp_path / "run").path
    state = load_checkpoint(out / "checkpoints/round-000004.safetensors")
    saved = load_file(out / "model/model.safetensors")
    assert state.average.keys() == state.parameters.keys()
    for name, value in state.average.items():
        (weight,) = (saved[key] for key in saved if key.endswith(name))
        assert torch.equal(weight, value)
        assert not torch.equal(value, state.parameters[name])
    lines = load_metrics(out)
    assert [line.held_out_last is not None for line in lines] == [False] * 3 + [True] * 2
    assert lines[3].held_out == lines[3].held_out_last  # an average of one
    report = fedsim.load_report(out)
    assert report.utility.last == lines[4].held_out_last
    assert report.utility.final.loss == pytest.approx(lines[4].held_out.loss)  # type: ignore[union-attr]
    assert report.utility.final.loss != report.utility.last.loss  # type: ignore[union-attr]
    expected = {
        "server.learning_rate": 0.01,
        "server.betas": [0.8, 0.95],
        "server.schedule.kind": "cosine",
        "server.average.start": 2,
        "server.debias": True,
        "strategy.clip.l2_clip_norm": 0.5,
    }
    assert expected.items() <= report.settings.items()
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<dt>server.learning_rate</dt><dd>0.01</dd>" in page
    assert "without the average of parameters" in page
