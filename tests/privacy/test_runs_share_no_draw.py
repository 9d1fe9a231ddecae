"""Two runs that differ share neither coins nor noise, though their seeds are equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.config import Config, with_settings
from fedsim.materials import Materials
from fedsim.session import build_plan
from tests.conftest import small_config

STRATEGIES: dict[str, dict[str, Any]] = {
    "uls": {},
    "els": {"name": "els", "cohort_size": None, "batch_size": 9},
    "group-privacy": {"name": "group-privacy", "cohort_size": None, "batch_size": 9},
}
CHANGES = [
    "privacy.noise_multiplier=2.0",
    "server.learning_rate=0.5",
    "strategy.clip.l2_clip_norm=0.7",
    "strategy.rounds=5",
    "data.held_out_limit=3",
    "seed=1",
]


def noise(config: Config, materials: Materials) -> list[float]:
    return [float(x) for x in build_plan(config, materials).noise(3).standard_normal(20)]


def coins(config: Config, materials: Materials) -> list[float]:
    return [float(x) for x in build_plan(config, materials).coins(3).random(20)]


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize("change", CHANGES)
def test_another_config_is_another_draw(
    materials: Materials, speeches: Path, strategy: dict[str, Any], change: str
) -> None:
    """With one noise for both, the difference of two releases would show the sum of the cohort."""
    first = small_config(speeches, strategy=strategy)
    second = with_settings(first, [change])
    assert noise(first, materials) == noise(first, materials)
    assert not set(noise(first, materials)) & set(noise(second, materials))
    assert not set(coins(first, materials)) & set(coins(second, materials))


def test_who_computes_and_when_it_is_saved_changes_no_release(
    materials: Materials, speeches: Path
) -> None:
    first = small_config(speeches)
    second = with_settings(first, ["executor.shard_size=3", "training.checkpoint_every=1"])
    assert noise(first, materials) == noise(second, materials)
    assert coins(first, materials) == coins(second, materials)


def test_the_ledger_tells_the_draws_of_two_configs_apart(
    materials: Materials, speeches: Path
) -> None:
    first = small_config(speeches)
    second = with_settings(first, ["server.learning_rate=0.5"])
    ids = {build_plan(config, materials).release_id for config in (first, second)}
    assert len(ids) == 2
    assert np.all([name.startswith("seeded:") for name in ids])
