"""The noise that is released is the noise that the report names, empty cohorts included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Keys
from fedsim.materials import Materials
from fedsim.plan import RoundPlan
from fedsim.round import run_round
from fedsim.runner.summary import privacy_block
from fedsim.state import ServerState
from fedsim.strategy import build_plan
from fedsim.tensors import Tensors
from tests.conftest import DEVICE, small_config

LAYOUT = {"wide": torch.zeros(150, 200, device=DEVICE), "bias": torch.zeros(30_000, device=DEVICE)}

CASES: dict[str, dict[str, Any]] = {
    "uls": {},
    "uls per-layer": {"clip": {"kind": "per-layer", "l2_clip_norm": 0.3}},
    "uls normalised": {"clip": {"kind": "flat", "l2_clip_norm": 0.3, "normalise": True}},
    "uls clipped": {"estimator": {"kind": "clipped", "min_weight": 12.0}},
    "uls weighted": {"user_weight_cap": 4},
    "uls fedavg": {"local": {"task": "fedavg"}},
    "els": {"name": "els", "cohort_size": None, "batch_size": 9},
}


class ZeroUpdates:
    """Every unit answers with a zero update; or nobody was drawn."""

    def __init__(self, nobody: bool) -> None:
        self.nobody = nobody

    def clipped_sum(self, parameters: Tensors, cohort: Keys, clip: Clip, round: int) -> WeightedSum:
        units = 0 if self.nobody else len(cohort)
        zero = WeightedSum.zero(parameters)
        return WeightedSum(zero.values, weight=float(units), num_units=units)


def released(plan: RoundPlan, nobody: bool) -> npt.NDArray[np.float64]:
    """What one round moves the parameters by: the release itself, under SGD at rate 1."""
    before = ServerState(0, LAYOUT)
    after, _ = run_round(before, plan, ZeroUpdates(nobody))
    moved = [(LAYOUT[name] - after.parameters[name]).flatten() for name in LAYOUT]
    return torch.cat(moved).double().cpu().numpy()


def p_value(sample: npt.NDArray[np.float64], stddev: float) -> float:
    return float(stats.kstest(sample, stats.norm(0.0, stddev).cdf).pvalue)


@pytest.mark.parametrize("nobody", [False, True], ids=["zero updates", "empty cohort"])
@pytest.mark.parametrize("noise", ["seeded", "secure"])
@pytest.mark.parametrize("strategy", CASES.values(), ids=CASES)
def test_released_noise_is_what_the_report_says(
    speeches: Path, materials: Materials, strategy: dict[str, Any], noise: str, nobody: bool
) -> None:
    config = small_config(
        speeches,
        strategy=strategy,
        server={"optimizer": "sgd", "learning_rate": 1.0},
        privacy={"noise": noise, "noise_multiplier": 0.8},
    )
    plan = build_plan(config, materials)
    reported = privacy_block(config, plan, ServerState(0, {}), "", 24).noise_stddev
    assert reported is not None
    sample = released(plan, nobody)
    assert p_value(sample, reported) > 1e-4
    assert p_value(sample, 1.1 * reported) < 1e-4
    assert p_value(sample, 0.9 * reported) < 1e-4


def test_noise_differs_between_rounds_and_repeats_with_the_address(
    speeches: Path, materials: Materials
) -> None:
    plan = build_plan(
        small_config(speeches, server={"optimizer": "sgd", "learning_rate": 1.0}), materials
    )
    first, again, next_one = (plan.draws.noise(r).chunk("w", 0).random(1000) for r in (0, 0, 1))
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first, next_one)[0, 1]) < 0.15


def test_secure_noise_never_repeats(speeches: Path, materials: Materials) -> None:
    plan = build_plan(small_config(speeches, privacy={"noise": "secure"}), materials)
    assert plan.draws.noise(0) != plan.draws.noise(0)


def test_expected_stddev_by_hand(speeches: Path, materials: Materials) -> None:
    config = small_config(speeches, privacy={"noise_multiplier": 1.3})
    plan = build_plan(config, materials)
    assert plan.noise_stddev == pytest.approx(1.3 * 0.5 * (1.0 + 2**-8) / 6, rel=1e-12)
    clipped = small_config(
        speeches,
        privacy={"noise_multiplier": 1.3},
        strategy={"estimator": {"kind": "clipped", "min_weight": 12.0}},
    )
    q = 6 / 24
    assert build_plan(clipped, materials).noise_stddev == pytest.approx(
        1.3 * 2 * 0.5 * (1.0 + 2**-8) / (q * 12), rel=1e-12
    )
