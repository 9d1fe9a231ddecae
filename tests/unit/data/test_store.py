"""Reading a store, and what a folder that is none says."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from fedsim.data.store import TokenStore
from tests.unit.data.data_samples import BEGIN, END, build

RECORDS = [("ann", "a"), ("bob", "bbb"), ("ann", "aa"), ("ann", "")]


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return build(RECORDS, tmp_path / "store")


def test_counts_users_and_examples(store: TokenStore) -> None:
    assert (store.num_users, store.num_examples, store.num_tokens) == (2, 3, 12)
    assert store.user_examples(0).tolist() == [0, 1]
    assert store.user_examples(1).tolist() == [2]
    assert store.user_examples(0).dtype == np.int64
    assert store.lengths(np.array([2, 0])).tolist() == [5, 3]
    names = (store.path / "users.jsonl").read_text().splitlines()
    assert [json.loads(name) for name in names] == ["ann", "bob"]


def test_an_example_is_a_read_only_view_of_the_file(store: TokenStore) -> None:
    example = store.example(1)
    assert example.tolist() == [BEGIN, ord("a"), ord("a"), END]
    assert np.shares_memory(example, store._tokens)
    with pytest.raises(ValueError, match="read-only"):
        example[0] = 1


def test_padding_is_zero_on_the_right(store: TokenStore) -> None:
    tokens, lengths = store.padded(np.array([2, 0]))
    assert tokens.tolist() == [[BEGIN, 98, 98, 98, END], [BEGIN, 97, END, 0, 0]]
    assert lengths.tolist() == [5, 3]
    assert tokens.dtype == lengths.dtype == np.int64


def test_padding_nothing(store: TokenStore) -> None:
    tokens, lengths = store.padded(np.zeros(0, np.int64))
    assert (tokens.shape, lengths.shape) == ((0, 0), (0,))


def test_another_process_receives_the_path_alone(tmp_path: Path) -> None:
    large = build([("ann", "x" * 100_000)], tmp_path / "large")
    sent = pickle.dumps(large)
    assert len(sent) < 1_000
    assert pickle.loads(sent).example(3).tolist() == large.example(3).tolist()  # noqa: S301
