"""A run ends with an error when its folder holds, or its network uses, other weights."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch

from fedsim.data.store import TokenStore
from fedsim.language_model import LanguageModel
from fedsim.runner.saved_model import check_served
from fedsim.tensors import Tensors
from tests.unit.data.data_samples import build

START = torch.zeros(258, 258)
TRAINED = torch.randn(258, 258, generator=torch.Generator().manual_seed(0))


class Table:
    """The logits of the next token are a row of a table, unless the table is not used."""

    device = torch.device("cpu")
    unknown_token_id = None
    vocabulary_size = 258

    def __init__(self, start: torch.Tensor, *, used: bool = True) -> None:
        self._start = start
        self._used = used

    def initial_parameters(self) -> dict[str, torch.Tensor]:
        return {"table": self._start.clone()}

    def logits(self, parameters: Tensors, tokens: torch.Tensor) -> torch.Tensor:
        return (parameters["table"] if self._used else START)[tokens]


def model(start: torch.Tensor, *, used: bool = True) -> LanguageModel:
    return cast(LanguageModel, Table(start, used=used))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    records = [(f"user-{index}", "a few words") for index in range(4)]
    return build(records, tmp_path_factory.mktemp("store") / "s", sequence_length=41)


def check(store: TokenStore, trained: torch.Tensor, saved: torch.Tensor, **options: bool) -> None:
    examples = np.arange(store.num_examples)
    check_served(model(START, **options), {"table": trained}, model(saved), store, examples)


def test_the_trained_weights_may_be_served(store: TokenStore) -> None:
    check(store, TRAINED, TRAINED)
    check(store, TRAINED, TRAINED + 1e-6)  # rounding of a merge
    check(store, START, START)  # nothing moved: an empty cohort without noise


@pytest.mark.parametrize("saved", [START, TRAINED + 0.1 * TRAINED.T], ids=["start", "other"])
def test_other_weights_may_not(store: TokenStore, saved: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="the saved model is not the trained model"):
        check(store, TRAINED, saved)


def test_training_that_went_nowhere_is_an_error(store: TokenStore) -> None:
    with pytest.raises(RuntimeError, match="the network does not use"):
        check(store, TRAINED, START, used=False)


def test_a_diverged_run_is_served_as_it_is(store: TokenStore) -> None:
    check(store, TRAINED * torch.nan, TRAINED * torch.nan)
