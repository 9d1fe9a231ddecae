"""Planning for texts with several owners: kept text and noise side by side, from counts alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedsim.config import load_config
from fedsim.errors import ConfigError
from fedsim.materials import load_materials
from fedsim.planner.owners import plan_owners
from fedsim.strategy import build_plan
from tests.conftest import WORDS, write_rows
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.light import light_config, write_config
from tests.unit.data.data_samples import graph_of

ELS = {"name": "els", "cohort_size": None, "batch_size": 8.0, "selection": "least-demand"}
PRIVACY = {"epsilon": 6.0, "noise_multiplier": None, "delta": 1e-4}


@pytest.fixture(scope="module")
def mails(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 texts of 12 users, each with up to two of 18 people as readers."""
    rng = np.random.default_rng(6)
    rows = [
        {
            "author": f"p{rng.integers(12)}",
            "body": " ".join(rng.choice(WORDS, 8)),
            "readers": [f"p{n}" for n in rng.choice(18, rng.integers(0, 3), replace=False)],
        }
        for _ in range(200)
    ]
    path = tmp_path_factory.mktemp("mails") / "mails.jsonl"
    return write_rows(path, rows)


def test_every_row_is_what_the_strategy_would_do(mails: Path) -> None:
    config = light_config(mails, strategy=ELS, privacy=PRIVACY, data={"owners_column": "readers"})
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    plan, planned = plan_owners(config, materials)
    sizes = [one["group_size"] for one in plan["group_sizes"]]
    assert sizes == [2**n for n in range(sizes[0].bit_length() - 1, sizes[-1].bit_length())]
    kept = [one["examples"] for one in plan["group_sizes"]]
    assert kept == sorted(kept)
    assert kept[-1] == len(materials.split.train_examples)
    for one in plan["group_sizes"]:
        strategy = config.strategy.model_copy(update={"group_size": one["group_size"]})
        made = build_plan(config.model_copy(update={"strategy": strategy}), materials)
        assert len(made.pool) == one["examples"]
        assert made.noise_multiplier == one["noise_multiplier"]
        assert made.sampling.probability == pytest.approx(8.0 / one["examples"])
    size = plan["recommendation"]["group_size"]
    assert planned.strategy.group_size == size
    graph = graph_of(materials.store)
    degrees = graph.degrees(materials.split.train_examples)
    median = np.quantile(degrees[degrees > 0], 0.5, method="inverted_cdf")
    assert size / 2 < median <= size


def test_the_command_writes_a_config_that_runs(mails: Path, tmp_path: Path) -> None:
    config = write_config(
        tmp_path / "c.toml", mails, strategy=ELS, privacy=PRIVACY, data={"owners_column": "readers"}
    )
    done = fedsim_ok("plan", config, "--json", "--set", "privacy.noise='secure'")
    found = json.loads(done.stdout)
    assert found["statement"].endswith("It requires coins and noise that stay secret.")
    written = load_config(tmp_path / "c.plan.toml")
    assert written.strategy.group_size == found["recommendation"]["group_size"]
    assert "Every owner has" in found["statement"]
    assert "K (group_size)" in fedsim("plan", config, "--out", tmp_path / "c.plan.toml").stdout
    fedsim_ok("run", tmp_path / "c.plan.toml", "--out", tmp_path / "run")
    assert "training examples; give at most" in fedsim("plan", config, "--budget", "1e6").complaint


def test_without_a_promise_or_with_one_owner_each_there_is_nothing_to_weigh(
    mails: Path, tmp_path: Path
) -> None:
    config = light_config(mails, strategy=ELS, data={"owners_column": "readers"})
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    with pytest.raises(ConfigError, match="give both"):
        plan_owners(config, materials)
    alone = tmp_path / "alone.jsonl"
    alone.write_text(json.dumps({"author": "a", "body": "all my lord", "readers": []}) + "\n")
    config = light_config(alone, strategy=ELS, privacy=PRIVACY, data={"owners_column": "readers"})
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    with pytest.raises(ConfigError, match="each text has one owner"):
        plan_owners(config, materials)
