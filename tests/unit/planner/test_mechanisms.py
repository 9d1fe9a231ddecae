"""What other mechanisms need, for a run that releases private scores beside its rounds."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from fedsim.config import load_config, with_settings
from fedsim.materials import load_materials
from fedsim.strategy import build_plan
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.light import write_config


@pytest.mark.parametrize("scores", [None, {"noise_multiplier": 1.5}])
def test_every_mechanism_pays_for_the_scores_too(
    speeches: Path, tmp_path: Path, scores: dict[str, float] | None
) -> None:
    path = write_config(
        tmp_path / "c.toml",
        speeches,
        data={"held_out_examples": 0.4},
        privacy={
            "epsilon": 6.0,
            "delta": 1e-3,
            "noise_multiplier": None,
            "declared_num_users": 30,
        },
        training={"private_evaluation": scores},
    )
    done = fedsim_ok("plan", path, "--json")
    found = json.loads(done.stdout)
    config = load_config(path)
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    clip = found["strategies"]["uls"]["l2_clip_norm"]
    best = min(found["mechanisms"], key=lambda row: row["sum_noise"])
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
