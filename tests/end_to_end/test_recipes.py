"""Every recipe through `fedsim run` on its sample: a local copy in place of the hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedsim.data.config import recipe_names
from fedsim.report.schema import load_report
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.tiny_world import LONGEST, write_model
from tests.unit.preparation.recipe_samples import SAME_AS, on_sample

# Users of the prepared sample, and texts of them, counted by hand in
# tests/unit/preparation/test_recipes.py; the store drops BookSum's null and its empty summary.
COUNTS = {
    "arxiv-abstracts": (3, 9),
    "aya": (3, 8),
    "booksum": (4, 10),
    "cc-news": (4, 10),
    "enron-chua": (3, 11),
    "enron-kandpal": (2, 5),
    "enron-owners": (3, 7),
    "open-assistant": (3, 8),
    "open-assistant-threads": (3, 8),
    "reddit": (2, 5),
    "reddit-1600-words": (2, 4),
    "stack-overflow": (4, 11),
    "wildchat": (3, 7),
}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A model of one layer, which is no matter here."""
    return {"name_or_path": str(write_model(tmp_path_factory.mktemp("network"), 0))}


def config_of(data: dict[str, Any], folder: Path, **model: Any) -> Path:  # noqa: ANN401
    uls, els = {"cohort_size": 1}, {"name": "els", "batch_size": 1}
    several = data.get("recipe") in SAME_AS  # of several owners, which els alone takes
    raw = {
        "data": data,
        "model": {"trainable": "ln_", **(model or {"pretraining_steps": 0})},
        "strategy": {"rounds": 1, "group_size": 2, **(els if several else uls)},
        "privacy": {"noise_multiplier": 1.0, "delta": 1e-3},
    }
    path = folder / "config.toml"
    path.write_text(tomli_w.dumps(raw), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", recipe_names())
def test_a_round_on_the_sample(name: str, network: dict[str, Any], tmp_path: Path) -> None:
    # Truncated, a text is an example: the report's counts are then the counts by hand.
    # The small network has no template for chats, and knows none of the languages of "aya".
    model, longest = ({}, 32) if name in ("aya", "wildchat") else (network, LONGEST)
    data = on_sample(name) | {"cutting": "truncate", "sequence_length": longest}
    fedsim_ok("run", config_of(data, tmp_path, **model), "--out", tmp_path / "run")
    report = load_report(tmp_path / "run")
    users, texts = COUNTS[name]
    assert report.data.users == users
    assert report.data.examples + report.data.held_out_examples == texts
    looked = [line for line in report.privacy.assumptions if "looked across users" in line]
    assert len(looked) == (name == "enron-kandpal")


def test_a_recipe_without_its_hub_says_how_to_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    done = fedsim("run", config_of({"recipe": "cc-news"}, tmp_path), "--out", tmp_path / "run")
    assert done.complaint.startswith("Error: data.source = 'vblagoje/cc_news': ")
    assert "give data.source a folder" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_store_is_not_prepared_again(tmp_path: Path) -> None:
    source, store, out = on_sample("cc-news")["source"], tmp_path / "store", tmp_path / "run"
    built = ("data", "build", source, "--recipe", "cc-news", "--tokenizer", "tiny-gpt")
    fedsim_ok(*built, "--out", store)
    data = {"recipe": "cc-news", "source": str(store)}
    refused = fedsim("run", config_of(data, tmp_path), "--out", out)
    assert "data.recipe = 'cc-news': data.source = " in refused.complaint
    config = config_of({**data, "preparation": []}, tmp_path)
    fedsim_ok("run", config, "--out", out)
