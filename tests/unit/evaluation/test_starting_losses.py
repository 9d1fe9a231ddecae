"""Losses of the starting model: those of evaluation, scored once, told apart by model and text."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.config import ModelConfig, parse_config
from fedsim.data.split import split_store
from fedsim.errors import ConfigError
from fedsim.evaluation import scoring
from fedsim.evaluation.score_cache import ScoreCache, losses_for
from fedsim.evaluation.scoring import ExampleScores, score_examples
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials, load_materials, load_model
from fedsim.strategy import build_plan
from fedsim.tensors import Tensors
from fedsim.utils import terminal
from tests.helpers.commands import fedsim_ok
from tests.helpers.light import light_config


@pytest.fixture
def fresh(materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Materials:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path))
    return materials


def refuse(*_: object) -> None:
    raise AssertionError("scored again")


def test_they_are_each_training_examples_loss_and_are_kept(
    fresh: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = losses_for(fresh, "highest-perplexity")
    assert losses is not None
    start, examples = fresh.model.initial_parameters(), fresh.split.train_examples
    expected = score_examples(fresh.model, start, fresh.store, examples).mean_nats()
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    monkeypatch.setattr(scoring, "score_padded", refuse)
    again = losses_for(fresh, "lowest-perplexity")
    assert again is not None and np.array_equal(again, losses)


def test_a_text_of_which_nothing_is_predicted_is_no_likely_one(
    fresh: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = np.zeros(fresh.store.num_examples, np.int64)
    scores = ExampleScores(none.astype(np.float64), none, none)
    monkeypatch.setattr(ScoreCache, "scores", lambda *_: scores)
    losses = losses_for(fresh, "lowest-perplexity")
    assert losses is not None and np.isposinf(losses).all()


def test_another_split_takes_its_own_out_of_what_is_kept(
    fresh: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses_for(fresh, "highest-perplexity")
    monkeypatch.setattr(scoring, "score_padded", refuse)
    other = replace(fresh, split=split_store(fresh.store, 5, 0.3, 0.0))
    examples = other.split.train_examples
    assert not np.array_equal(examples, fresh.split.train_examples)
    losses = losses_for(other, "highest-perplexity")
    assert losses is not None
    monkeypatch.undo()
    start = fresh.model.initial_parameters()
    expected = score_examples(fresh.model, start, fresh.store, examples).mean_nats()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_another_model_or_text_is_scored_anew(
    fresh: Materials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to the last bit of one weight, which moves no likeliest word."""
    losses_for(fresh, "highest-perplexity")
    monkeypatch.setattr(scoring, "score_padded", refuse)
    start = fresh.model.initial_parameters()
    first = next(iter(start))
    nudged = {**start, first: torch.nextafter(start[first], torch.tensor(10.0))}
    trained = load_model(ModelConfig(pretraining_steps=2))
    text = copy.copy(fresh.store)
    vars(text)["manifest"] = {**fresh.store.manifest, "sha256": "0" * 64}
    for other in (
        replace(fresh, model=trained),
        replace(fresh, model=Started(fresh.model, nudged)),  # type: ignore[arg-type]
        replace(fresh, store=text),
    ):
        with pytest.raises(AssertionError, match="scored again"):
            losses_for(other, "highest-perplexity")


class Started:
    """A model that starts from given parameters."""

    def __init__(self, model: LanguageModel, parameters: Tensors) -> None:
        self._model, self._parameters = model, parameters

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def initial_parameters(self) -> Tensors:
        return {name: value.clone() for name, value in self._parameters.items()}


def test_example_level_sampling_pools_by_perplexity_and_refuses_chunks(speeches: Path) -> None:
    strategy = {"name": "els", "cohort_size": None, "batch_size": 4, "group_size": 1}
    config = light_config(speeches, strategy={**strategy, "selection": "highest-perplexity"})
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    plan = build_plan(config, materials)
    losses = losses_for(materials, "highest-perplexity")
    assert losses is not None
    of_example = dict(zip(materials.split.train_examples.tolist(), losses.tolist(), strict=True))
    for user in range(materials.split.num_users):
        mine = materials.split.user_examples(user).tolist()
        (chosen,) = set(mine) & set(plan.pool.tolist())
        assert of_example[chosen] == max(of_example[one] for one in mine)
    raw = config.model_dump(exclude_none=True)
    raw["strategy"]["selection"] = "random-chunk"
    with pytest.raises(ConfigError, match=r"strategy\.selection = 'random-chunk'"):
        build_plan(parse_config(raw), materials)


def test_the_table_has_a_row_a_rule_with_what_it_chooses(
    materials: Materials,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    materials.model.save(materials.model.initial_parameters(), tmp_path / "model")
    monkeypatch.setattr(terminal, "_QUIET", 0.01)  # and says that it is at it
    options = ("--group-size", "1", "--model", tmp_path / "model")
    done = fedsim_ok("data", "selections", materials.store.path, *options, "--json")
    assert "scoring: 0 seconds so far" in done.stderr
    found = json.loads(done.stdout)
    rows = {row["selection"]: row for row in found["rows"]}
    assert set(rows) == {
        "random",
        "longest",
        "shortest",
        "highest-perplexity",
        "lowest-perplexity",
        "random-chunk",
    }
    lengths = {rule: row["mean_length"] for rule, row in rows.items()}
    assert lengths["shortest"] < lengths["random"] < lengths["longest"]
    scored = {rule: row["perplexity"] for rule, row in rows.items()}
    assert scored["lowest-perplexity"] < scored["random"] < scored["highest-perplexity"]
    for row in rows.values():
        assert row["sequences"] == materials.store.num_users
