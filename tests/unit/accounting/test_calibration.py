"""Calibration lands on the safe side, near the target; its cache is only ever a shortcut."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedsim.accounting import calibration
from fedsim.accounting.accountants import epsilon
from fedsim.accounting.calibration import calibrate_noise_multiplier
from fedsim.accounting.events import Composition, RoundCost
from fedsim.errors import ConfigError
from fedsim.sampling import FixedSizeSampling, PoissonSampling, Relation, TruncatedPoissonSampling
from tests.conftest import Patch

EASY: dict[str, Any] = {
    "sampling": PoissonSampling(0.1),
    "units_per_user": 1,
    "rounds": 100,
    "epsilon": 0.1,  # little privacy loss is a small grid: milliseconds
    "delta": 1e-5,
}


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 1.0},
        {"accountant": "rdp"},
        {"accountant": "rdp", "sampling": PoissonSampling(1e-3), "epsilon": 12.0, "rounds": 10},
        {"sampling": PoissonSampling(1.0), "epsilon": 3.0},
        {"epsilon": 0.05},
        {"rounds": 1, "sampling": PoissonSampling(0.5), "epsilon": 0.5},
        {"units_per_user": 4, "sampling": PoissonSampling(0.02), "epsilon": 0.3},
        {
            "units_per_user": 32,
            "sampling": PoissonSampling(64 / (1024 * 32)),
            "rounds": 1000,
            "epsilon": 1.0,
        },
        {"units_per_user": 183, "sampling": PoissonSampling(3e-4), "epsilon": 4.0, "rounds": 1000},
        {"accountant": "moments", "epsilon": 2.0},
        {"accountant": "group-privacy", "units_per_user": 3, "epsilon": 2.0},
        {"relation": Relation.REPLACE, "epsilon": 1.0},
        {"sampling": FixedSizeSampling(20, 200), "epsilon": 1.0},
        {"sampling": TruncatedPoissonSampling(0.1, 25, 200), "epsilon": 1.0},
        {"epsilon": 7.0, "rounds": 10**6, "sampling": PoissonSampling(1e-3), "delta": 1e-8},
    ],
    ids=[
        *("uls", "rdp", "large", "everyone", "strict", "single", "els", "charles", "median user"),
        *("moments", "group privacy", "replace", "fixed size", "truncated", "million rounds"),
    ],
)
def test_on_the_safe_side_and_near(change: dict[str, Any]) -> None:
    arguments = {**EASY, **change}
    noise = calibrate_noise_multiplier(**arguments)
    cost = RoundCost(arguments["sampling"], noise, arguments["units_per_user"])
    by = arguments.get("accountant"), arguments.get("relation")
    spent = epsilon(cost, arguments["rounds"], arguments["delta"], *by)
    assert arguments["epsilon"] * (1 - 2e-3) <= spent <= arguments["epsilon"]
    assert float(f"{noise:.4e}") == noise  # five significant digits


def test_where_little_noise_diverges_the_search_goes_up(monkeypatch: Patch) -> None:
    """As black-box group privacy does: infinite below an edge, finite and falling above it."""

    def diverging(costs: Composition, *_: object) -> float:
        ((cost, _rounds),) = costs
        noise = cost.noise_multiplier
        return math.inf if noise < 3.0 else 0.4 / noise

    monkeypatch.setattr(calibration, "epsilon_of_composition", diverging)
    assert calibrate_noise_multiplier(**EASY) == pytest.approx(4.0, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "epsilon = 0.0"),
        ({"epsilon": math.inf}, "epsilon = inf"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"rounds": 0}, "rounds = 0"),
        ({"units_per_user": 0}, "units_per_user = 0"),
        ({"units_per_user": 2, "accountant": "rdp"}, "accountant = 'rdp'"),
        (
            {"sampling": PoissonSampling(1e-7), "delta": 1e-5},
            "delta = 1e-05: is at least 1e-05, the probability",
        ),
        ({"delta": 1e-25}, r"epsilon = 0.1, delta = 1e-25.*cannot certify"),
        (
            {"epsilon": 1e-7, "delta": 1e-9, "accountant": "rdp"},
            "'rdp' cannot certify this with any noise; give fewer rounds, a larger ",
        ),
    ],
)
def test_what_cannot_be_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        calibrate_noise_multiplier(**{**EASY, **change})


def test_the_cache_saves_the_search(monkeypatch: Patch) -> None:
    first = calibrate_noise_multiplier(**EASY)

    def fail(*_: object) -> float:
        raise AssertionError("searched again")

    monkeypatch.setattr(calibration, "least_noise", fail)
    assert calibrate_noise_multiplier(**EASY) == first
    with pytest.raises(AssertionError, match="searched again"):
        calibrate_noise_multiplier(**{**EASY, "rounds": 101})


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: Patch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("FEDSIM_CACHE", str(blocked))
    assert calibrate_noise_multiplier(**EASY) > 0.0


def test_no_less_noise_than_the_least_considered() -> None:
    """A promise that hardly binds ends at the floor, on the safe side."""
    noise = calibrate_noise_multiplier(**{**EASY, "epsilon": 1e6, "accountant": "rdp"})
    assert noise == 0.05
