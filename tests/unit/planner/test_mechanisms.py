"""What other mechanisms need, for a run that releases private scores beside its rounds."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedsim.config import Config, load_config, with_settings
from fedsim.errors import ConfigError
from fedsim.materials import load_materials
from fedsim.parts import noise_multiplier
from fedsim.planner import mechanisms
from fedsim.planner.mechanisms import Mechanism, recommended
from fedsim.sampling import BalancedSampling, Sampling
from fedsim.strategy import build_plan
from tests.helpers.commands import fedsim, fedsim_json, fedsim_ok
from tests.helpers.light import write_config


def write(folder: Path, speeches: Path, **sections: dict[str, Any]) -> Path:
    privacy = {"epsilon": 6.0, "noise_multiplier": None, **sections.pop("privacy", {})}
    strategy = {"rounds": 8, **sections.pop("strategy", {})}
    path = folder / "c.toml"
    return write_config(path, speeches, strategy=strategy, privacy=privacy, **sections)


def names_of(config: Path) -> set[str]:
    return {row["name"] for row in fedsim_json("plan", config)["mechanisms"]}


def test_more_users_a_round_are_no_merit_of_a_mechanism() -> None:
    def one(name: str, size: float, noise: float) -> Mechanism:
        return Mechanism(name, ("privacy.mechanism",), size, 1.0, noise, noise, noise)

    found = [one("poisson", 6.0, 1.0), one("balanced", 20.0, 0.3), one("banded", 6.0, 0.8)]
    said = recommended(found)
    assert said.startswith("Less noise at the same ε and δ, with as many users per round: banded ")
    assert "20 % less noise than Poisson sampling" in said
    assert recommended(found[:2]).startswith("With as many users per round, Poisson")


def test_what_cannot_be_certified_is_left_out(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Balanced sampling's accountant cannot at the smallest δ; nobody asked for it."""

    def refusing(config: Config, sampling: Sampling, **options: int) -> float:
        if isinstance(sampling, BalancedSampling):
            raise ConfigError("accountant 'random-allocation' cannot certify this with any noise")
        return noise_multiplier(config, sampling, **options)

    monkeypatch.setattr(mechanisms, "calibrated", refusing)
    names = names_of(write(tmp_path, speeches))
    assert {"poisson", "truncated-poisson"} <= names
    assert "balanced" not in names


def test_what_has_no_proof_with_the_estimator_is_left_out(speeches: Path, tmp_path: Path) -> None:
    """A clipped denominator, where a cap lets one user displace another; a run refuses it, too."""
    estimator = {"kind": "clipped", "min_weight": 20.0}
    names = names_of(write(tmp_path, speeches, strategy={"estimator": estimator}))
    assert "truncated-poisson" not in names
    assert {"poisson", "balanced"} <= names


def test_an_accountant_that_was_asked_for_prices_every_mechanism(
    speeches: Path, tmp_path: Path
) -> None:
    names = names_of(write(tmp_path, speeches, privacy={"accountant": "pld"}))
    assert "balanced" not in names  # a run refuses its accountant beside this one
    assert {"poisson", "truncated-poisson"} <= names


@pytest.mark.parametrize("scores", [None, {"noise_multiplier": 1.5}])
def test_every_mechanism_pays_for_the_scores_too(
    speeches: Path, tmp_path: Path, scores: dict[str, float] | None
) -> None:
    path = write_config(
        tmp_path / "c.toml",
        speeches,
        data={"held_out_examples": 0.4},
        privacy={"epsilon": 6.0, "delta": 1e-3, "noise_multiplier": None, "declared_num_users": 30},
        training={"private_evaluation": scores},
    )
    done = fedsim_ok("plan", path, "--json")
    found = json.loads(done.stdout)
    config = load_config(path)
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    clip = found["strategies"]["uls"]["l2_clip_norm"]
    size = found["mechanisms"][0]["cohort_size"]
    alike = [row for row in found["mechanisms"] if row["cohort_size"] <= 1.02 * size]
    best = min(alike, key=lambda row: row["sum_noise"])
    sized = any("cohort_size" in setting for setting in best["settings"])
    said = fedsim("plan", path).stdout
    assert (f"{best['settings'][-1]}, without strategy.cohort_size" in " ".join(said.split())) != (
        sized
    )
    for row in found["mechanisms"]:
        settings = tomllib.loads("\n".join(row["settings"]))
        raw = config.model_dump(exclude_none=True)
        raw["strategy"].pop("cohort_size")
        raw["strategy"] |= {"clip": {"kind": "flat", "l2_clip_norm": clip}, **settings["strategy"]}
        raw["privacy"] |= settings.get("privacy", {})
        plan = build_plan(with_settings(config.model_validate(raw), []), materials)
        assert plan.noise_multiplier == row["noise_multiplier"], row["name"]
