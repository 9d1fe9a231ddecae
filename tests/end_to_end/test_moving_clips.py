"""Whole runs whose clip moves: the price stays, the log says where it went, a resume repeats it."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.accounting.accountants import epsilon
from fedsim.accounting.events import RoundCost
from fedsim.report.schema import load_metrics
from fedsim.runner.checkpoint import load_checkpoint
from fedsim.sampling import PoissonSampling
from tests.end_to_end.test_command_line import assert_same_run
from tests.helpers.commands import fedsim as command
from tests.helpers.light import light_config, write_config

ADAPTIVE = {"quantile": 0.5, "learning_rate": 0.5, "count_noise_stddev": 0.6}


def strategy(policy: str, **keys: Any) -> dict[str, Any]:  # noqa: ANN401
    """A strategy whose clip starts far above every update."""
    return {"clip": {"kind": "per-layer", "l2_clip_norm": 5.0, policy: keys}}


def test_an_adaptive_run_shrinks_its_clip_and_resumes_to_the_same_bits(
    speeches: Path, tmp_path: Path
) -> None:
    # Half of the users, so that no round draws nobody: that would count none within the clip.
    adaptive = strategy("adaptive", **ADAPTIVE) | {"cohort_size": 12}
    config = write_config(tmp_path / "a.toml", speeches, strategy=adaptive)
    out = tmp_path / "run"
    done = command("run", config, "--out", out)
    assert done.returncode == 0, done.stderr
    lines = load_metrics(out)[1:]
    norms = [line.clip_norm or 0.0 for line in lines]
    assert norms[0] == pytest.approx(5.0)
    assert norms[-1] < 0.7 * norms[0]
    for before, after, line in zip(norms, norms[1:], lines, strict=False):
        share = line.released_share
        assert share is not None
        assert after == pytest.approx(before * math.exp(-0.5 * (share - 0.5)), rel=1e-9)
    assert 0.0 < load_checkpoint(out / "checkpoints/round-000004.safetensors").clip_scale < 1.0

    cut = tmp_path / "cut"  # as a kill in round 3 leaves it
    shutil.copytree(out, cut)
    (cut / "checkpoints/round-000004.safetensors").unlink()
    (cut / "report.json").unlink()
    shutil.rmtree(cut / "model")
    fedsim.run(fedsim.load_config(config), cut, resume=True)
    assert_same_run(out, cut)

    privacy = fedsim.load_report(out).privacy
    constant = RoundCost(PoissonSampling(12 / 24), 1.0)
    assert privacy.epsilon == epsilon(constant, 4, 1e-3)
    assert privacy.clip["adapted_to_quantile"] == 0.5
    assert privacy.clip["update_noise_multiplier"] == pytest.approx((1 - 1 / 1.44) ** -0.5)
    html = (out / "report.html").read_text(encoding="utf-8")
    assert "a noisy count of the units within it" in html


def test_a_schedule_over_examples_that_are_normalised(speeches: Path, tmp_path: Path) -> None:
    schedule = {"kind": "exponential", "final_l2_clip_norm": 0.01, "rounds": 2}
    clip = {"l2_clip_norm": 1.0, "normalise": True, "schedule": schedule}
    els = {"name": "els", "cohort_size": None, "batch_size": 9, "clip": clip}
    out = fedsim.run(light_config(speeches, strategy=els), tmp_path / "run").path
    lines = load_metrics(out)[1:]
    assert [line.clip_norm for line in lines] == pytest.approx([1.0, 0.1, 0.01, 0.01])
    assert {line.released_share for line in lines} == {None}
    privacy = fedsim.load_report(out).privacy
    assert (privacy.clip["bound"], privacy.noise_multiplier) == (1.0, 1.0)
    assert any(
        "followed a schedule that does not depend on data" in line for line in privacy.assumptions
    )
