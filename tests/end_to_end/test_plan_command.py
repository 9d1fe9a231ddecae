"""`fedsim plan` as a user types it, up to the run of the config that it writes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedsim.config import Config, load_config
from fedsim.materials import Materials
from fedsim.report.schema import load_report
from fedsim.runner.summary import expected_gradients
from fedsim.strategy import build_plan
from tests.conftest import small_config
from tests.helpers.commands import fedsim, fedsim_json, fedsim_ok, write_config

PROMISE = {"epsilon": 6.0, "noise_multiplier": None}


@pytest.fixture
def config(tmp_path: Path, speeches: Path) -> Path:
    return write_config(tmp_path / "mine.toml", speeches, privacy=PROMISE)


def check_candidate(found: dict[str, Any], config: Config, materials: Materials) -> None:
    """The written config, made into a plan by the strategy, has the numbers that were shown."""
    plan = build_plan(config, materials)
    said = found["strategies"][config.strategy.name]
    assert said["noise_multiplier"] == plan.noise_multiplier
    share = config.strategy.clip.l2_clip_norm / said["l2_clip_norm"]
    assert share == pytest.approx(0.25, rel=0.05)  # of the median norm, in two digits
    assert said["noise_stddev"] == pytest.approx(plan.noise_stddev / share, rel=1e-12)
    assert said["sampling_probability"] == plan.sampling.probability
    assert expected_gradients(config, materials, plan) == pytest.approx(found["budget"], rel=1e-9)


def check_mechanisms(found: dict[str, Any], config: Config, materials: Materials) -> None:
    """Each row is of the plan that its settings build; the recommended has the least noise."""
    uls = found["strategies"]["uls"]
    rows = {row["name"]: row for row in found["mechanisms"]}
    assert list(rows) == ["poisson", "truncated-poisson", "balanced", "banded", "blt"]
    for row in rows.values():
        settings = tomllib.loads("\n".join(row["settings"]))
        strategy = {
            "cohort_size": None,
            "group_size": uls["group_size"],
            "clip": {"kind": "flat", "l2_clip_norm": uls["l2_clip_norm"]},
            **settings["strategy"],
        }
        privacy = {**PROMISE, **settings.get("privacy", {})}
        source = Path(config.data.source)
        plan = build_plan(small_config(source, strategy=strategy, privacy=privacy), materials)
        assert plan.noise_multiplier == row["noise_multiplier"]
        assert plan.fresh_noise_stddev == pytest.approx(row["noise_stddev"], rel=1e-3)
        rounds = config.strategy.rounds
        in_sums = plan.noise_stddev * plan.matrix.error_over(rounds)
        assert row["sum_noise"] == pytest.approx(in_sums, rel=1e-3)
    best = min(rows.values(), key=lambda row: row["sum_noise"])
    assert best["name"] != "poisson"
    assert all(setting in found["mechanism"] for setting in best["settings"])


def test_the_planned_config_runs_as_it_is(
    config: Path, materials: Materials, tmp_path: Path
) -> None:
    found = fedsim_json("plan", config, "--budget", "8")
    assert found["budget"] == 8.0
    assert found["users"] == materials.split.num_users
    norms = {int(size): norm for size, norm in found["gradient_norms"]["median"].items()}
    uls, els = (found["strategies"][name] for name in ("uls", "els"))
    assert els["l2_clip_norm"] == norms[1]
    assert uls["l2_clip_norm"] == norms[uls["group_size"]]
    chosen = min(("els", "uls"), key=lambda name: found["strategies"][name]["noise_stddev"])
    assert found["recommendation"]["strategy"] == chosen
    for one in (uls, els):
        for term in ("ε = 6", "δ = 0.001", "every user", "add-or-remove-one", "accountant"):
            assert term in one["statement"]
    assert any(note.startswith("Not private") for note in found["notes"])
    check_mechanisms(found, load_config(config), materials)
    written = Path(found["config"])
    assert written == config.with_name("mine.plan.toml")
    check_candidate(found, load_config(written), materials)
    fedsim_ok("run", written, "--out", tmp_path / "run")
    assert load_config(written).server.learning_rate == found["learning_rate"]
    privacy = load_report(tmp_path / "run").privacy
    assert privacy.epsilon is not None and privacy.epsilon <= 6.0


def test_people_get_a_table_and_are_told_what_was_replaced(
    config: Path, materials: Materials
) -> None:
    done = fedsim_ok("plan", config, "--set", "strategy.clip.normalise=true")
    assert "which replaces an earlier plan" not in done.stdout
    for part in (
        "noise multiplier",
        "Recommended: ",
        "Not private",
        "L(1)/L(G)",
        "fedsim run",
        "truncated-poisson",
        "accumulate",
    ):
        assert part in done.stdout
    written = config.with_name("mine.plan.toml")
    assert "server.learning_rate comes from the config" not in written.read_text(encoding="utf-8")
    planned = load_config(written)
    assert planned.strategy.clip.normalise
    before = small_config(Path(planned.data.source), privacy=PROMISE)
    cheap = before.model_copy(
        update={
            "privacy": before.privacy.model_copy(update={"epsilon": None, "noise_multiplier": 1.0})
        }
    )
    own = expected_gradients(cheap, materials, build_plan(cheap, materials))
    assert expected_gradients(planned, materials, build_plan(planned, materials)) == pytest.approx(
        own
    )
    again = fedsim_ok(
        "plan", config, "--set", 'server.optimizer="sgd"', "--set", "server.learning_rate=1.0"
    )
    assert "which replaces an earlier plan" in again.stdout
    assert load_config(written).server.learning_rate == 1.0
    assert "server.learning_rate comes from the config" in written.read_text(encoding="utf-8")


def test_a_delta_that_promises_nothing_is_warned_of(config: Path, speeches: Path) -> None:
    wide = ("plan", config, "--set", "privacy.delta=0.1")
    assert "publishing everything about one user" in fedsim(*wide).stderr
    write_config(
        config,
        speeches,
        strategy={"name": "els", "cohort_size": None, "batch_size": 9},
        privacy={**PROMISE, "declared_num_examples": 90},
    )
    assert "n = 90 pooled examples, declared public" in fedsim(*wide).stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--budget 0", "--budget = 0.0: give a finite number"),
        ("--budget 1e6", "--budget = 1e+06: all examples of all users give only"),
        ("--set privacy.delta=2", "privacy.delta = 2"),
        ("--set strategy.selection=random-chunk", "strategy.selection = 'random-chunk'"),
        ("--set strategy.local.task=fedavg", 'strategy.local.task = "fedavg"'),
        ("--set strategy.cohort_size=900", "or give --budget"),
        ("--set strategy.sampling.kind=fixed-size", "sampling kind 'fixed-size': no proved cost"),
        (
            "--set strategy.sampling.kind=balanced",
            'prints the settings of other samplers; take "poisson"',
        ),
        (
            "--set strategy.sampling.kind=cyclic --set strategy.sampling.groups=2",
            'prints the settings of other samplers; take "poisson"',
        ),
    ],
)
def test_wrong_input_is_one_sentence(config: Path, arguments: str, complaint: str) -> None:
    said = fedsim("plan", config, *arguments.split()).complaint
    assert complaint in said
    assert len(said.splitlines()) == 1
    assert not config.with_name("mine.plan.toml").exists()


def test_no_promise_and_no_place(config: Path, speeches: Path) -> None:
    before = config.read_text(encoding="utf-8")
    assert "exists, but is not a plan; name" in fedsim("plan", config, "--out", config).complaint
    assert config.read_text(encoding="utf-8") == before
    raw = tomllib.loads(before)
    assert raw["privacy"].pop("epsilon") == 6.0
    assert "privacy.epsilon = None" in fedsim("plan", write_config(config, speeches)).complaint
