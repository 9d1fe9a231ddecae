"""Held out by place: a user's first or last examples, so many at most."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.data.split import Rule, split_store
from fedsim.data.store import TokenStore
from tests.unit.data.data_samples import build

SIZES = [1, 2, 5, 10, 11, 30, 400]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    records = [(f"user {size}", "x") for size in SIZES for _ in range(size)]
    return build(records, tmp_path_factory.mktemp("held") / "store")


def _places(store: TokenStore, rule: Rule, fraction: float, limit: int | None) -> list[list[int]]:
    """Per user, which of its examples are held out, counted from 0."""
    split = split_store(store, 0, fraction, 0.0, rule=rule, limit=limit)
    return [
        np.flatnonzero(np.isin(store.user_examples(user), split.held_out_examples)).tolist()
        for user in range(store.num_users)
    ]


def test_the_first_tenth_and_at_most_32(store: TokenStore) -> None:
    """As CC-News is split (Charles et al. 2024, App. G): nobody with two examples has none."""
    counts = [0, 1, 1, 1, 2, 3, 32]
    assert _places(store, "first", 0.1, 32) == [list(range(count)) for count in counts]


def test_the_last_tenth(store: TokenStore) -> None:
    counts = [0, 1, 1, 1, 2, 3, 40]
    expected = [list(range(size - count, size)) for size, count in zip(SIZES, counts, strict=True)]
    assert _places(store, "last", 0.1, None) == expected


@pytest.mark.parametrize("rule", ["first", "last"])
def test_one_example_is_left_for_training_and_none_is_asked_for(
    store: TokenStore, rule: Rule
) -> None:
    assert [len(places) for places in _places(store, rule, 0.99, None)] == [
        min(size - 1, int(np.ceil(0.99 * size))) for size in SIZES
    ]
    assert not any(_places(store, rule, 0.0, None))


def test_a_limit_on_a_random_tenth(store: TokenStore) -> None:
    assert [len(places) for places in _places(store, "random", 0.1, 2)] == [0, 0, 1, 1, 1, 2, 2]
    free, limited = (_places(store, "random", 0.1, limit)[-1] for limit in (None, 2))
    assert len(free) == 40
    assert set(limited) < set(free)
