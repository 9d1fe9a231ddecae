"""The promise that travels with a model: `fedsim account verify` and `compose`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fedsim.accounting.accountants import choose, epsilon
from fedsim.accounting.events import RoundCost
from fedsim.accounting.promise import promise, verify
from fedsim.accounting.statement import PrivacyTerms
from fedsim.accounting.trade_off import attacker_text
from fedsim.report.schema import load_report
from fedsim.sampling import (
    BalancedSampling,
    CyclicSampling,
    FixedSizeSampling,
    PoissonSampling,
    Sampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
)
from tests.helpers.commands import fedsim, fedsim_json, fedsim_ok
from tests.helpers.light import write_config

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "privacy.schema.json").read_text(encoding="utf-8")
)
STRATEGIES: dict[str, dict[str, Any]] = {
    "uls": {},
    "els": {"name": "els", "cohort_size": None, "batch_size": 6},
    "shuffled": {"sampling": {"kind": "shuffled"}},
    "non-private": {"name": "non-private", "cohort_size": None, "batch_size": 6, "clip": None},
}
NOTHING = {"noise_multiplier": None, "delta": None, "noise": None}


@pytest.fixture(scope="module")
def finished(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with adapters."""
    folder = tmp_path_factory.mktemp("promise")
    model = {"lora_rank": 2, "trainable": "all"}
    config = write_config(folder / "c.toml", speeches, model=model)
    fedsim_ok("run", config, "--out", folder / "run")
    return folder / "run"


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategys_promise_verifies(name: str, speeches: Path, tmp_path: Path) -> None:
    privacy = NOTHING if name == "non-private" else {}
    config = write_config(tmp_path / "c.toml", speeches, strategy=STRATEGIES[name], privacy=privacy)
    fedsim_ok("run", config, "--out", tmp_path / "run")
    checked = fedsim_ok("account", "verify", tmp_path / "run" / "model")
    report = load_report(tmp_path / "run").privacy
    assert report.statement in checked.stdout
    assert ("Vocabulary and starting point: " in checked.stdout) == (name != "non-private")
    content = json.loads((tmp_path / "run" / "model" / "privacy.json").read_text())
    jsonschema.validate(content, SCHEMA)
    assert content["epsilon"] == report.epsilon
    assert content["hypothetical"] == (name == "shuffled")
    assert ("No privacy guarantee" in checked.stdout) == (name == "non-private")


def test_the_card_says_the_promise_and_nothing_measured(finished: Path) -> None:
    report = load_report(finished)
    for folder, library in (("model", "transformers"), ("adapter", "peft")):
        content = json.loads((finished / folder / "privacy.json").read_text(encoding="utf-8"))
        card = (finished / folder / "README.md").read_text(encoding="utf-8")
        assert f"\nlibrary_name: {library}\n" in card
        sentences = (report.privacy.statement, attacker_text(content), *report.privacy.assumptions)
        assert all(str(sentence) in card for sentence in sentences)
        for score in (report.utility.final.loss, report.utility.final.perplexity):
            assert f"{score:.3f}" not in card
        done = fedsim("account", "verify", finished / folder / "privacy.json", "--json")
        assert json.loads(done.stdout)["statement"] == report.privacy.statement


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("epsilon", 0.1, "epsilon = 0.1: its releases cost "),
        ("delta", 1e-9, "its releases cost"),
        ("releases", [{"cost": {}, "rounds": 1}], "privacy.json: "),
        ("relation", "nobody", "cannot be recomputed"),
        ("accountant", "moment", "accountant = 'moment'"),
        ("format", 4, "this fedsim reads 3"),
        ("weights", {}, "was changed: privacy.json is for other weights"),
    ],
)
def test_a_promise_that_its_releases_do_not_keep_is_refused(
    finished: Path, tmp_path: Path, key: str, value: object, words: str
) -> None:
    folder = shutil.copytree(finished / "adapter", tmp_path / "edited")
    content = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    (folder / "privacy.json").write_text(json.dumps({**content, key: value}), encoding="utf-8")
    assert words in fedsim("account", "verify", folder).complaint


@pytest.mark.parametrize(
    "sampling",
    [
        PoissonSampling(0.1),
        TruncatedPoissonSampling(0.1, 20, 100),
        FixedSizeSampling(10, 100),
        ShuffledSampling(10, 100),
        BalancedSampling(10, 2),
        CyclicSampling(10, 2, 0.5),
        CyclicSampling(10, 2, 1.0),
    ],
    ids=lambda sampling: sampling.kind,
)
def test_every_samplers_promise_verifies(sampling: Sampling, tmp_path: Path) -> None:
    cost = RoundCost(sampling, 2.0)
    relation = choose([cost])[1]
    spent = epsilon(cost, 10, 1e-5)
    terms = PrivacyTerms.of(cost, "users", rounds=10, delta=1e-5, epsilon=spent, noise="secure")
    content = promise(tmp_path, terms, [(cost, 10)], relation, ())
    (tmp_path / "privacy.json").write_text(json.dumps(content), encoding="utf-8")
    assert verify(tmp_path)["epsilon"] == spent


def test_a_folder_without_a_promise_is_wrong_input(finished: Path, tmp_path: Path) -> None:
    complaint = fedsim("account", "verify", tmp_path).complaint
    assert "privacy.json: cannot be read: No such file or directory\n" in complaint
    complaint = fedsim("account", "verify", finished).complaint  # the run in place of its model
    assert complaint.endswith(f"; give {finished / 'adapter'}\n")
    (tmp_path / "privacy.json").write_text("{", encoding="utf-8")
    assert "privacy.json: cannot be read" in fedsim("account", "verify", tmp_path).complaint


def test_runs_that_were_fixed_in_advance_are_composed(
    finished: Path, speeches: Path, tmp_path: Path
) -> None:
    """The cost of two runs is that of all their rounds; other relations and δ do not add up."""
    one, twice = (fedsim_json("account", "compose", *([finished] * number)) for number in (1, 2))
    report = load_report(finished).privacy
    assert one["epsilon"] == pytest.approx(report.epsilon)
    assert one["epsilon"] < twice["epsilon"] < 2 * one["epsilon"]
    assert twice["rounds"] == 2 * report.rounds
    words = fedsim_ok("account", "compose", finished, finished, "--delta", "1e-6").stdout
    for part in ("2 runs, if all were fixed in advance", "δ = 1e-06", "Poisson", "accountant"):
        assert part in words
    config = write_config(tmp_path / "c.toml", speeches, privacy={"delta": 1e-2})
    fedsim_ok("run", config, "--out", tmp_path / "other")
    other = ("account", "compose", finished, tmp_path / "other")
    assert "--delta: the runs have" in fedsim(*other).complaint
    fedsim_ok(*other, "--delta", "1e-3")
