"""Log-likelihoods by a plain loop, from disk the second time, and never those of other weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.attacks import likelihoods as module
from fedsim.attacks.likelihoods import Likelihoods
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.errors import ConfigError
from fedsim.language_model import LanguageModel
from fedsim.materials import Materials

EXAMPLES = np.array([7, 0, 3], np.int64)


def test_whole_sequences_are_summed_not_averaged(materials: Materials, tmp_path: Path) -> None:
    model, store = materials.model, materials.store
    start = model.initial_parameters()
    scores = Likelihoods(store, EXAMPLES, tmp_path).scores(model, start)
    for example, nats in zip(EXAMPLES.tolist(), scores.nats, strict=True):
        ids = torch.from_numpy(store.example(example).astype(np.int64))
        log_probabilities = model.logits(start, ids[None])[0].double().log_softmax(dim=-1)
        total = -sum(float(log_probabilities[t, ids[t + 1]]) for t in range(len(ids) - 1))
        assert nats == pytest.approx(total, rel=1e-5)


def test_the_second_time_they_come_from_disk(
    materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, start = materials.model, materials.model.initial_parameters()
    kept = Likelihoods(materials.store, EXAMPLES, tmp_path)
    first = kept.scores(model, start)
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors"}

    def refuse(*_: object) -> None:
        raise AssertionError("scored again")

    monkeypatch.setattr(module, "score_examples", refuse)
    again = kept.scores(model, start)
    assert np.array_equal(first.nats, again.nats)
    assert np.array_equal(first.tokens, again.tokens)
    others: list[Callable[[], object]] = [
        lambda: kept.scores(_with_other_heads(model), start),
        lambda: Likelihoods(materials.store, EXAMPLES[:2], tmp_path).scores(model, start),
        lambda: kept.scores(model, _nudged(start)),
    ]
    for other in others:
        with pytest.raises(AssertionError, match="scored again"):
            other()


def test_a_model_that_diverged_is_no_target(materials: Materials, tmp_path: Path) -> None:
    broken = {name: value * torch.nan for name, value in _start(materials).items()}
    with pytest.raises(ConfigError, match="3 of 3 log-likelihoods are not finite"):
        Likelihoods(materials.store, EXAMPLES, tmp_path).scores(materials.model, broken)


def _with_other_heads(model: LanguageModel) -> LanguageModel:
    """The same weights in a network that computes something else with them."""
    assert isinstance(model, TransformersModel)
    other = copy.copy(model)
    other.module = copy.deepcopy(model.module)
    vars(other.module)["config"].n_head *= 2
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
