"""The promise that travels with a model: checked by the command, refused where it was edited."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from transformers import AutoModelForCausalLM

from fedsim.accounting.accountants import choose
from fedsim.accounting.events import RoundCost
from fedsim.accounting.promise import TOGETHER, promise, verify
from fedsim.accounting.statement import PrivacyTerms
from fedsim.accounting.trade_off import attacker_text
from fedsim.errors import ConfigError
from fedsim.report.schema import load_report
from fedsim.runner.launch import run
from fedsim.sampling import (
    BalancedSampling,
    CyclicSampling,
    FixedSizeSampling,
    PoissonSampling,
    Relation,
    Sampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
)
from tests.conftest import small_config
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.light import write_config

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "privacy.schema.json").read_text(encoding="utf-8")
)
COST = RoundCost(PoissonSampling(0.5), 1.0)
STRATEGIES: dict[str, dict[str, Any]] = {
    "uls": {},
    "els": {"name": "els", "cohort_size": None, "batch_size": 6},
    "group-privacy": {"name": "group-privacy", "cohort_size": None, "batch_size": 6},
    "shuffled": {"sampling": {"kind": "shuffled"}},
}


@pytest.fixture(scope="module")
def finished(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with adapters."""
    folder = tmp_path_factory.mktemp("promise")
    model = {"lora_rank": 2, "trainable": "all"}
    config = write_config(folder / "c.toml", speeches, model=model)
    fedsim_ok("run", config, "--out", folder / "run")
    return folder / "run"


def sealed(content: dict[str, Any]) -> str:
    """The file with digests that fit, as somebody who knows how they are made would write it."""
    digests = {
        key: hashlib.sha256(json.dumps(content[key], sort_keys=True).encode()).hexdigest()
        for key in content
        if key != "digests"
    }
    return json.dumps({**content, "digests": digests})


def edited(folder: Path, to: Path, key: str, value: object, *, seal: bool = False) -> Path:
    """A copy of a folder in which a field says something else, its digest too if `seal`."""
    shutil.copytree(folder, to)
    content = json.loads((to / "privacy.json").read_text(encoding="utf-8"))
    content[key] = value
    text = sealed(content) if seal else json.dumps(content)
    (to / "privacy.json").write_text(text, encoding="utf-8")
    return to


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategys_promise_is_computed_again(
    name: str, speeches: Path, tmp_path: Path
) -> None:
    privacy = {"epsilon": 8.0, "noise_multiplier": None} if name == "uls" else {}
    config = write_config(tmp_path / "c.toml", speeches, strategy=STRATEGIES[name], privacy=privacy)
    fedsim_ok("run", config, "--out", tmp_path / "run")
    checked = fedsim_ok("account", "verify", tmp_path / "run" / "model")
    report = load_report(tmp_path / "run").privacy
    assert report.statement in checked.stdout
    assert "Vocabulary and starting point: " in checked.stdout
    content = json.loads((tmp_path / "run" / "model" / "privacy.json").read_text())
    jsonschema.validate(content, SCHEMA)
    assert content["epsilon"] == report.epsilon
    assert content["hypothetical"] == (name == "shuffled")


def test_the_card_says_the_promise_and_nothing_measured(finished: Path) -> None:
    report = load_report(finished)
    for folder, library in (("model", "transformers"), ("adapter", "peft")):
        card = (finished / folder / "README.md").read_text(encoding="utf-8")
        assert card.startswith(f"---\nlibrary_name: {library}\n")
        assert report.privacy.statement in card
        assert all(sentence in card for sentence in report.privacy.assumptions)
        for score in (report.utility.final.loss, report.utility.final.perplexity):
            assert f"{score:.3f}" not in card
        done = fedsim("account", "verify", finished / folder / "privacy.json", "--json")
        assert json.loads(done.stdout)["statement"] == report.privacy.statement


def test_without_noise_it_says_that_there_is_no_guarantee(speeches: Path, tmp_path: Path) -> None:
    strategy = {"name": "non-private", "cohort_size": None, "batch_size": 6, "clip": None}
    privacy = {"noise_multiplier": None, "delta": None, "noise": None}
    config = write_config(tmp_path / "c.toml", speeches, strategy=strategy, privacy=privacy)
    fedsim_ok("run", config, "--out", tmp_path / "run")
    checked = fedsim("account", "verify", tmp_path / "run" / "model")
    assert (checked.returncode, checked.stdout[:21]) == (0, "No privacy guarantee:")
    assert "No privacy guarantee" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_a_promise_whose_delta_was_rounded_to_the_nearest_verifies(
    speeches: Path, tmp_path: Path
) -> None:
    """As those are that were written before δ was rounded up."""
    config = small_config(speeches, privacy={"delta": 0.0002338124}, strategy={"rounds": 1})
    model = run(config, tmp_path / "run").path / "model"
    said = json.loads((model / "privacy.json").read_text(encoding="utf-8"))["statement"]
    assert "δ = 0.000233813)" in said
    (model / "README.md").unlink()
    before = said.replace("δ = 0.000233813)", "δ = 0.000233812)")
    edited(model, tmp_path / "before", "statement", before, seal=True)
    assert verify(tmp_path / "before")["statement"] == before
    wrong = said.replace("δ = 0.000233813)", "δ = 0.000233811)")
    edited(model, tmp_path / "wrong", "statement", wrong, seal=True)
    with pytest.raises(ConfigError, match="statement: is not that of its releases"):
        verify(tmp_path / "wrong")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epsilon", 0.1),
        ("delta", 1e-9),
        ("noise", "secure"),
        ("relation", "zero-out-one"),
        ("releases", []),
        ("assumptions", []),
        ("statement", "Nothing can be found."),
        ("hypothetical", True),
        ("accountant", "rdp"),
    ],
)
def test_an_edited_field_is_named(finished: Path, tmp_path: Path, key: str, value: object) -> None:
    folder = edited(finished / "model", tmp_path / "edited", key, value)
    said = fedsim("account", "verify", folder).complaint
    assert f"{key} = " in said
    assert said.endswith(": was edited\n")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("epsilon", 0.1, "epsilon = 0.1: its releases cost "),
        ("delta", 1e-9, "its releases cost"),
        ("statement", "Nothing can be found.", "statement: is not that of its releases"),
        ("noise", "secure", "statement: is not that of its releases"),
        ("epsilon", True, "epsilon = True: its releases cost"),
        ("unit", "household", 'unit = "household": not what fedsim writes'),
        ("assumptions", {"a": 1}, "assumptions = "),
        ("assumptions", ["nothing"], '"nothing" of privacy.json is not in it'),
        ("hypothetical", True, "hypothetical = True"),
        ("releases", [{"cost": {}, "rounds": 1}], "releases: "),
        ("releases", [], "releases = []: not what fedsim writes"),
        ("releases", [{"cost": COST.to_json(), "rounds": 0}], "not what fedsim writes"),
        ("relation", "nobody", "cannot be computed again"),
        ("accountant", "moment", "cannot be computed again: accountant = 'moment'"),
        ("format", 4, "not a promise of format 3"),
        ("trade_off", None, "trade_off = null: its releases give"),
        ("trade_off", [0.1], "trade_off = [0.1]: its releases give"),
        pytest.param("epsilon", 10**400, "a number has more digits than", id="long-epsilon"),
        pytest.param("delta", 10**400, "", id="long-delta"),
        ("format", 1, "not a promise of format 3"),
        ("weights", {}, "and privacy.json is of []"),
        ("weights", {"model.safetensors": "0" * 64}, "model.safetensors: was changed"),
        ("unit", "owner", 'unit = "owner", sampled = "users"'),
        ("epsilon", None, "statement: promises something, and epsilon is null"),
        ("sampled", "users, (ε = 0.01, δ = 1e-9)", "sampled = "),
        ("noise", "quiet", "noise = "),
        ("hypothetical", 0, "hypothetical = 0"),
        ("accountant", "", 'accountant = "": not what fedsim writes'),
        ("accountant", ["pld"], 'accountant = ["pld"]: not what'),
    ],
)
def test_a_promise_better_than_its_releases_is_refused_whatever_its_digests_say(
    finished: Path, tmp_path: Path, key: str, value: object, said: str
) -> None:
    folder = edited(finished / "model", tmp_path / "edited", key, value, seal=True)
    assert said in fedsim("account", "verify", folder).complaint


def test_other_weights_than_the_promise_is_of_are_refused(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished / "model", tmp_path / "model"))
    fedsim_ok("account", "verify", folder)
    network = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        next(network.parameters()).add_(1e-3)
    network.save_pretrained(folder)
    assert "model.safetensors: was changed" in fedsim("account", "verify", folder).complaint
    shutil.copy(finished / "model" / "model.safetensors", folder)
    fedsim_ok("account", "verify", folder)
    (folder / "more.safetensors").write_bytes(b"")
    assert "more.safetensors" in fedsim("account", "verify", folder).complaint


def test_what_an_attacker_can_make_of_it_is_computed_again(finished: Path, tmp_path: Path) -> None:
    content = json.loads((finished / "model" / "privacy.json").read_text(encoding="utf-8"))
    report = load_report(finished).privacy.trade_off
    assert report is not None
    assert content["trade_off"]["tests"] == report.model_dump(mode="json")["tests"]
    said = attacker_text(content)
    assert said is not None
    assert said in (finished / "model" / "README.md").read_text(encoding="utf-8")
    assert said in (finished / "report.html").read_text(encoding="utf-8")
    assert "For an attacker who does not know the seed this means" in said
    content["trade_off"]["tests"][0]["true_positive_rate"] *= 0.9
    folder = edited(
        finished / "model", tmp_path / "less", "trade_off", content["trade_off"], seal=True
    )
    assert "its releases give" in fedsim("account", "verify", folder).complaint
    for number, (path, better) in enumerate(
        (
            (("tests", 0, "false_positive_rate"), 0.2),  # where a bound stands is no bound
            (("tests", 0, "true_positive_rate"), True),
            (("priors", 1), 0.9),
            (("deltas", 0, "epsilon"), 0.5),
            (("auroc",), 7.0),  # no rate
            (("auroc",), math.inf),
        )
    ):
        stated = json.loads((finished / "model" / "privacy.json").read_text())["trade_off"]
        place = stated
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = better
        to = tmp_path / f"where-{number}"
        folder = edited(finished / "model", to, "trade_off", stated, seal=True)
        assert "its releases give" in fedsim("account", "verify", folder).complaint
    folder = Path(shutil.copytree(finished / "model", tmp_path / "card"))
    card = folder / "README.md"
    card.write_text(
        card.read_text(encoding="utf-8").replace("wrongly names 1 in", "wrongly names 9 in")
    )
    assert "what privacy.json says of an attacker" in fedsim("account", "verify", folder).complaint


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
def test_a_promise_of_nothing_verifies_whatever_was_sampled(
    sampling: Sampling, tmp_path: Path
) -> None:
    cost = RoundCost(sampling, 1.0)
    terms = PrivacyTerms.of(cost, "users", rounds=10, delta=1e-25, noise="seeded")
    relation = choose([cost])[1]
    content = promise(tmp_path, terms, [(cost, 10)], relation, ())
    assert content["epsilon"] is None
    (tmp_path / "privacy.json").write_text(json.dumps(content), encoding="utf-8")
    assert verify(tmp_path)["statement"].startswith("No privacy guarantee: the ")
    said = content["statement"].replace("certifies no finite", "certifies a small")
    for other in (said, content["statement"].replace("10 rounds", "9 rounds")):
        text = sealed({**content, "statement": other})
        (tmp_path / "privacy.json").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match="statement: promises something"):
            verify(tmp_path)


@pytest.mark.parametrize("rounds", [1, 2])
def test_no_promise_of_few_rounds_verifies(rounds: int, tmp_path: Path) -> None:
    cost = RoundCost(PoissonSampling(0.5), 0.0)
    terms = PrivacyTerms.of(cost, "users", rounds=rounds, delta=None, noise="seeded")
    content = promise(tmp_path, terms, [], Relation.ADD_OR_REMOVE, ())
    (tmp_path / "privacy.json").write_text(json.dumps(content), encoding="utf-8")
    assert verify(tmp_path)["statement"].startswith("No privacy guarantee: the releases of ")
    better = content["statement"].replace("have no finite ε", "have a small ε")
    text = sealed({**content, "statement": better})
    (tmp_path / "privacy.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="statement: promises something"):
        verify(tmp_path)


@pytest.mark.parametrize("before", ["", f"{TOGETHER}all runs, taken together, keep ε = 3. "])
def test_an_assumption_is_no_place_for_another_promise(
    finished: Path, tmp_path: Path, before: str
) -> None:
    """In both files, with a digest that fits: only the start may have a promise of its own."""
    said = load_report(finished).privacy.assumptions
    better = f"{before}Every user has (ε = 0.1, δ = 1e-09)-differential privacy."
    folder = edited(
        finished / "model", tmp_path / "edited", "assumptions", [*said, better], seal=True
    )
    card = folder / "README.md"
    text = card.read_text(encoding="utf-8").replace(
        f"- {said[-1]}\n", f"- {said[-1]}\n- {better}\n"
    )
    card.write_text(text, encoding="utf-8")
    assert "its promise is not the statement" in fedsim("account", "verify", folder).complaint


def test_a_folder_without_a_promise_is_wrong_input(finished: Path, tmp_path: Path) -> None:
    complaint = fedsim("account", "verify", tmp_path).complaint
    assert "privacy.json: cannot be read: No such file or directory\n" in complaint
    complaint = fedsim("account", "verify", finished).complaint  # the run in place of its model
    assert complaint.endswith(f"; give {finished / 'adapter'}\n")
    (tmp_path / "privacy.json").write_text("{", encoding="utf-8")
    assert "privacy.json: not JSON" in fedsim("account", "verify", tmp_path).complaint


def test_a_folder_that_is_called_as_weights_is_none(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished / "adapter", tmp_path / "adapter")
    (folder / "x.bin").mkdir()
    fedsim_ok("account", "verify", folder)


def test_a_promise_of_more_releases_than_it_says_is_refused(finished: Path, tmp_path: Path) -> None:
    """Whatever its digests say; beside an adapter, too."""
    adapter = finished / "adapter"
    twice = json.loads((adapter / "privacy.json").read_text(encoding="utf-8"))["releases"] * 2
    folder = edited(adapter, tmp_path / "adapter", "releases", twice, seal=True)
    said = fedsim("account", "verify", folder).complaint
    assert re.search("epsilon = .*: its releases cost ", said)


def test_a_key_twice_and_a_card_that_promises_more_are_refused(
    finished: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished / "adapter", tmp_path / "adapter")
    text = (folder / "privacy.json").read_text(encoding="utf-8")
    (folder / "privacy.json").write_text('{"epsilon": 0.01,' + text[1:], encoding="utf-8")
    assert "the key 'epsilon' twice" in fedsim("account", "verify", folder).complaint
    (folder / "privacy.json").write_text(text, encoding="utf-8")
    card = (folder / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(card + "\nTrained on plays.\n", encoding="utf-8")
    fedsim_ok("account", "verify", folder)
    more = (
        *("(ε = 0.01, δ = 1e-9)", "ε=0.1", "ε  ≤ 0.1", "epsilon = 0.1", "Epsilon: 0.1"),
        *("**ε** = 0.1", "&epsilon; = 0.1", "&#949;&nbsp;= 0.1", "<b>ε</b> = 0.1"),
        *("$\\epsilon$ = 0.1", "ε\u200b = 0.1", "in all runs, taken together, keep ε = 0.1"),
    )
    for other in (*(f"{card}\nEvery user has {said}.\n" for said in more), "# A model\n"):
        (folder / "README.md").write_text(other, encoding="utf-8")
        assert "README.md: was edited" in fedsim("account", "verify", folder).complaint
