"""Local epochs on half of a user's examples: the same as one user at a time, and what it leaves."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedsim.clients.personalisation import _halves, _local_user, personalise
from fedsim.clients.tasks.gradients import mean_gradient
from fedsim.config import FedAvg, ModelConfig
from fedsim.data.building.build import build_store
from fedsim.data.building.tokenise import BatchTokeniser
from fedsim.data.sources.records import Record
from fedsim.data.store import TokenStore
from fedsim.evaluation.scoring import score_examples
from fedsim.execution import Unit
from fedsim.language_model import LanguageModel
from fedsim.materials import load_model

TRAINING = FedAvg(task="fedavg", epochs=2, batch_size=2, learning_rate=0.1)
SIZES = (1, 2, 3, 5, 8)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_model(ModelConfig(name_or_path="tiny-gpt", pretraining_steps=0), 0, 16)


@pytest.fixture(scope="module")
def store(model: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    phrases = ["to be or not to be", "words, words", "my kingdom for a horse", "out, out"]
    return build_store(
        [
            Record(f"user-{u}", phrases[(u + k) % 4])
            for u, size in enumerate(SIZES)
            for k in range(size)
        ],
        BatchTokeniser(model.encode, model.vocabulary_size, 16, "truncate"),
        Path(tmp_path_factory.mktemp("store")) / "s",
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        source="a test",
    )


def one_at_a_time(model: LanguageModel, store: TokenStore, user: int) -> float:
    """Train by plain steps of gradient descent and score: nats per predicted token."""
    own, reserved = _halves(store, user, 7)
    unit, batches = _local_user(store, user, own, TRAINING, 7)
    parameters = model.initial_parameters()
    for rows in batches:
        batch = Unit(user, unit.tokens[rows], unit.lengths[rows])
        gradient = mean_gradient(model, parameters, batch).values
        parameters = {name: value - 0.1 * gradient[name] for name, value in parameters.items()}
    scores = score_examples(model, parameters, store, reserved)
    return float(scores.nats.sum() / scores.tokens.sum())


def test_it_is_what_one_user_at_a_time_gives(model: LanguageModel, store: TokenStore) -> None:
    users = np.arange(store.num_users)
    found = personalise(model, model.initial_parameters(), store, users, training=TRAINING, seed=7)
    assert found.users.tolist() == [1, 2, 3, 4]
    assert found.num_left_out == 1
    for user, after in zip(found.users.tolist(), found.after, strict=True):
        assert after == pytest.approx(one_at_a_time(model, store, user), rel=1e-5)


def test_it_helps_users_who_repeat_themselves(model: LanguageModel, store: TokenStore) -> None:
    users = np.array([3, 4])
    found = personalise(model, model.initial_parameters(), store, users, training=TRAINING, seed=7)
    assert (found.after < found.without - 0.1).all()
    assert found.without == pytest.approx(math.log(model.vocabulary_size), rel=0.1)


def test_the_halves_are_all_of_a_user_and_do_not_meet(store: TokenStore) -> None:
    for user, size in enumerate(SIZES):
        own, reserved = _halves(store, user, 7)
        assert len(own) == size // 2
        assert sorted([*own, *reserved]) == store.user_examples(user).tolist()
    assert any(
        _halves(store, 4, seed)[0].tolist() != _halves(store, 4, 7)[0].tolist() for seed in range(4)
    )
