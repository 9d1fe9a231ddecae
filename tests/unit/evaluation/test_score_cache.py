"""Scores by a plain loop, from disk the second time, and never those of other weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.attacks.user_inference import finite_scores
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.errors import ConfigError
from fedsim.evaluation import score_cache as module
from fedsim.evaluation import scoring
from fedsim.evaluation.score_cache import ScoreCache
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials

EXAMPLES = np.array([7, 0, 3], np.int64)


def test_whole_sequences_are_summed_not_averaged(materials: Materials, tmp_path: Path) -> None:
    model, store = materials.model, materials.store
    start = model.initial_parameters()
    scores = ScoreCache(store, tmp_path).scores(model, start, EXAMPLES)
    for example, nats in zip(EXAMPLES.tolist(), scores.nats, strict=True):
        ids = torch.from_numpy(store.example(example).astype(np.int64))
        log_probabilities = model.logits(start, ids[None])[0].double().log_softmax(dim=-1)
        total = -sum(float(log_probabilities[t, ids[t + 1]]) for t in range(len(ids) - 1))
        assert nats == pytest.approx(total, rel=1e-5)


def test_the_second_time_they_come_from_disk(
    materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, start = materials.model, materials.model.initial_parameters()
    kept = ScoreCache(materials.store, tmp_path)
    first = kept.scores(model, start, EXAMPLES)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors"}

    def refuse(*_: object) -> None:
        raise AssertionError("scored again")

    monkeypatch.setattr(scoring, "score_padded", refuse)
    again = kept.scores(model, start, EXAMPLES)
    assert np.array_equal(first.nats, again.nats)
    assert np.array_equal(first.tokens, again.tokens)
    others: list[Callable[[], object]] = [
        lambda: kept.scores(_with_other_heads(model), start, EXAMPLES),
        lambda: kept.scores(_renamed(model), start, EXAMPLES),
        lambda: kept.scores(model, start, EXAMPLES[:2]),
        lambda: kept.scores(model, _nudged(start), EXAMPLES),
    ]
    for other in others:
        with pytest.raises(AssertionError, match="scored again"):
            other()


@pytest.mark.parametrize("package", ["torch", "transformers", "peft"])
def test_what_another_version_computed_is_scored_again(
    materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """A seeded run has other noise with it, and must choose by its own losses."""
    found = {name: metadata.version(name) for name in ("torch", "transformers", "peft")}
    monkeypatch.setattr(module, "version", found.__getitem__)
    assert not _scored_again(materials, tmp_path, lambda: None)
    assert _scored_again(materials, tmp_path, lambda: found.update({package: "99.0"}))


def _scored_again(materials: Materials, folder: Path, change: Callable[[], None]) -> bool:
    """Whether examples that were scored are scored again after a change."""
    kept = ScoreCache(materials.store, folder)
    kept.scores(materials.model, _start(materials), EXAMPLES)
    before = set(folder.iterdir())
    change()
    kept.scores(materials.model, _start(materials), EXAMPLES)
    return set(folder.iterdir()) != before


def test_a_model_that_diverged_is_no_target(materials: Materials, tmp_path: Path) -> None:
    broken = {name: value * torch.nan for name, value in _start(materials).items()}
    with pytest.raises(ConfigError, match="3 of 3 log-likelihoods are not finite"):
        finite_scores(ScoreCache(materials.store, tmp_path), materials.model, broken, EXAMPLES)


def _with_other_heads(model: LanguageModel) -> LanguageModel:
    """The same weights in a network that computes something else with them."""
    assert isinstance(model, TransformersModel)
    other = copy.copy(model)
    other.module = copy.deepcopy(model.module)
    vars(other.module)["config"].n_head *= 2
    return other


def _renamed(model: LanguageModel) -> LanguageModel:
    """Of a network that cannot be looked into, the name alone tells which it is."""
    other = copy.copy(model)
    vars(other)["name"] = "another"
    return other


def _start(materials: Materials) -> dict[str, torch.Tensor]:
    return materials.model.initial_parameters()


def _nudged(parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Change one number in its last bit."""
    first = next(iter(parameters))
    changed = parameters[first].clone()
    flat = changed.view(-1)
    flat[0] = torch.nextafter(flat[0], torch.tensor(10.0))
    return {**parameters, first: changed}
