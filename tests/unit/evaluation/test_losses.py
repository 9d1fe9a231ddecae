"""Losses by hand, and evaluation against a loop that shares no code with it."""

from __future__ import annotations

import itertools
import math
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fedsim.data.store import TokenStore
from fedsim.evaluation.losses import example_losses, predicted_mask, token_losses
from fedsim.evaluation.metrics import evaluate
from fedsim.evaluation.scoring import batches_by_length
from fedsim.language_model import LanguageModel
from fedsim.report.schema import Scores
from fedsim.tensors import Tensors
from tests.unit.data.data_samples import build


class Bigram:
    """The logits of the next token are a row of a table."""

    device = torch.device("cpu")
    vocabulary_size = 258

    def __init__(self, unknown_token_id: int | None = None) -> None:
        self.unknown_token_id = unknown_token_id

    def logits(self, parameters: Tensors, tokens: torch.Tensor) -> torch.Tensor:
        return parameters["table"][tokens]


def bigram(unknown_token_id: int | None = None) -> LanguageModel:
    return cast(LanguageModel, Bigram(unknown_token_id))


# Probabilities of the next of two tokens, and of a third that never comes.
LOG = math.log
TABLE = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]).log()


def test_losses_by_hand() -> None:
    tokens = torch.tensor([[0, 1, 1, 0], [1, 1, 2, 2], [0, 2, 0, 0]])
    losses = token_losses(TABLE[tokens], tokens)
    expected = [[0.25, 0.8, 0.1], [0.8, 0.1, 0.6], [0.25, 0.2, 0.5]]
    torch.testing.assert_close(losses, -torch.tensor(expected).log())
    lengths = torch.tensor([4, 2, 3])
    means = [-(LOG(0.25) + LOG(0.8) + LOG(0.1)) / 3, -LOG(0.8), -(LOG(0.25) + LOG(0.2)) / 2]
    torch.testing.assert_close(example_losses(TABLE[tokens], tokens, lengths), torch.tensor(means))


def test_padding_adds_nothing_whatever_it_is() -> None:
    lengths = torch.tensor([3, 1, 0])
    row = [0, 2, 1]
    values = [
        example_losses(TABLE[tokens], tokens, lengths)
        for padding in (0, 1, 2)
        for tokens in [torch.tensor([[*row, padding], [1, *[padding] * 3], [padding] * 4])]
    ]
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])
    assert values[0][0] == pytest.approx(-(LOG(0.25) + LOG(0.2)) / 2)
    assert values[0][1:].tolist() == [0.0, 0.0]  # nothing is predicted in a text of one token


def test_the_mask_is_of_predictions_not_of_tokens() -> None:
    mask = predicted_mask(torch.zeros(4, 4, dtype=torch.int64), torch.tensor([0, 1, 2, 4]))
    assert mask.tolist() == [[False] * 3, [False] * 3, [True, False, False], [True] * 3]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """300 texts of 0 to 39 letters: more than one batch, whether by examples or by tokens."""
    rng = np.random.default_rng(3)
    records = [
        (f"user-{index % 7}", "".join(rng.choice(list("abcde"), rng.integers(1, 40))))
        for index in range(300)
    ]
    return build(records, tmp_path_factory.mktemp("store") / "s", sequence_length=41)


@pytest.fixture(scope="module")
def parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    table = torch.randn(258, 258, generator=generator)
    table[:, ord("a")] += 4.0  # so that something is predicted rightly
    return {"table": table}


def everything(store: TokenStore) -> npt.NDArray[np.int64]:
    return np.arange(store.num_examples, dtype=np.int64)


def by_loop(
    table: torch.Tensor,
    store: TokenStore,
    examples: npt.NDArray[np.int64],
    unknown: int | None = None,
) -> Scores:
    log_probabilities = table.double().numpy()
    log_probabilities = log_probabilities - np.log(np.exp(log_probabilities).sum(1, keepdims=True))
    losses, right = [], 0
    of_examples: dict[int, list[float]] = {}
    of_user: dict[int, list[tuple[float, int]]] = {}
    for index in examples.tolist():
        ids = store.example(index).tolist()
        user = next(u for u in range(store.num_users) if index in store.user_examples(u))
        for before, after in itertools.pairwise(ids):
            losses.append(-log_probabilities[before, after])
            hit = int(log_probabilities[before].argmax() == after and after != unknown)
            right += hit
            of_user.setdefault(user, []).append((losses[-1], hit))
        of_examples.setdefault(user, []).append(float(np.mean(losses[1 - len(ids) :])))
    mean = math.fsum(losses) / len(losses)
    by_user = [np.mean(pairs, axis=0) for pairs in of_user.values()]
    user_loss, user_accuracy = np.mean(by_user, axis=0)
    return Scores(
        loss=mean,
        perplexity=math.exp(mean),
        accuracy_top1=right / len(losses),
        tokens=len(losses),
        user_loss=user_loss,
        user_accuracy_top1=user_accuracy,
        users=len(by_user),
        unit_loss=float(np.mean([np.mean(some) for some in of_examples.values()])),
    )


@pytest.mark.parametrize("unknown", [None, ord("a")], ids=["no unknown", "a is unknown"])
def test_evaluation_is_what_a_loop_counts(
    store: TokenStore, parameters: dict[str, torch.Tensor], unknown: int | None
) -> None:
    examples = everything(store)[::-1].copy()
    found = evaluate(bigram(unknown), parameters, store, examples)
    expected = by_loop(parameters["table"], store, examples, unknown)
    assert found.tokens == expected.tokens == int((store.lengths(examples) - 1).sum())
    assert found.loss == pytest.approx(expected.loss, rel=1e-6)
    assert found.perplexity == pytest.approx(expected.perplexity, rel=1e-6)
    assert found.accuracy_top1 == expected.accuracy_top1
    assert found.users == expected.users != 1
    assert found.user_loss == pytest.approx(expected.user_loss, rel=1e-6)
    assert found.user_accuracy_top1 == pytest.approx(expected.user_accuracy_top1, rel=1e-12)
    assert found.user_loss != pytest.approx(found.loss, abs=1e-4)
    assert found.unit_loss == pytest.approx(expected.unit_loss, rel=1e-6)
    alone = [evaluate(bigram(unknown), parameters, store, examples[[i]]) for i in range(9)]
    some = evaluate(bigram(unknown), parameters, store, examples[:9], "example")
    assert some.unit_loss == pytest.approx(np.mean([one.loss for one in alone]), rel=1e-6)


def test_no_examples_have_no_score(store: TokenStore, parameters: dict[str, torch.Tensor]) -> None:
    nothing = evaluate(bigram(), parameters, store, np.array([], dtype=np.int64))
    assert nothing.tokens == 0
    assert math.isnan(nothing.loss)
    assert math.isnan(nothing.perplexity)
    assert math.isnan(nothing.accuracy_top1)


def test_a_large_vocabulary_has_small_batches_of_the_same_examples() -> None:
    lengths = np.array([64, 3, 64, 64, 5] * 20)
    small, large = (list(batches_by_length(lengths, size)) for size in (2_000, 2**22))
    assert max(len(places) * int(lengths[places].max()) for places in small) > 512
    assert max(len(places) * int(lengths[places].max()) for places in large) <= 64
    for batches in (small, large):
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
