"""Splitting and selecting: exact counts, fair draws, and no user that depends on another."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.data.split import Rule, Split, split_store
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError
from tests.unit.data.data_samples import build


def _store(sizes: list[int], folder: Path) -> TokenStore:
    """User u has sizes[u] different examples; number e of a user has 3 + e % 5 tokens."""
    records = [
        (f"user {user}", chr(97 + example // 5) * (1 + example % 5))
        for user, size in enumerate(sizes)
        for example in range(size)
    ]
    return build(records, folder / "-".join(["store", *map(str, sizes[:20])]))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return _store([1, 2, 5, 10, 15, 40, 1, 10] * 5, tmp_path_factory.mktemp("split"))


def _held_out_places(split: Split, store: TokenStore, user: int) -> list[int]:
    examples = store.user_examples(user)
    return np.flatnonzero(np.isin(examples, split.held_out_examples)).tolist()


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(-3, 1000),
    held_out_examples=st.floats(0, 0.99),
    held_out_users=st.floats(0, 0.6),
)
def test_every_example_has_one_place_and_the_counts_are_right(
    store: TokenStore, seed: int, held_out_examples: float, held_out_users: float
) -> None:
    split = split_store(store, seed, held_out_examples, held_out_users)
    # Six standard deviations of Binomial(40, at most 0.6): a rank or another rate shows below.
    assert abs(len(split.held_out_users) - held_out_users * store.num_users) < 6 * np.sqrt(10)
    assert sorted([*split.users, *split.held_out_users]) == list(range(store.num_users))
    theirs = [example for user in split.held_out_users for example in store.user_examples(user)]
    everything = [*split.train_examples, *split.held_out_examples, *theirs]
    assert sorted(everything) == list(range(store.num_examples))
    assert (np.diff(split.held_out_examples) > 0).all()
    for index, user in enumerate(split.users.tolist()):
        examples = split.user_examples(index)
        size = len(store.user_examples(user))
        held_out = min(math.floor(held_out_examples * size + 0.5), size - 1)
        assert len(examples) == split.user_sizes[index] == size - held_out
        assert set(examples) <= set(store.user_examples(user))


def test_a_users_split_does_not_depend_on_the_others(tmp_path: Path) -> None:
    small, large = _store([10, 7, 10], tmp_path), _store([30, 7, 10, 100, 2], tmp_path)
    mine = split_store(small, 3, 0.4, 0.0)
    with_others = split_store(large, 3, 0.4, 0.0)
    for user in (1, 2):
        assert _held_out_places(mine, small, user) == _held_out_places(with_others, large, user)


def test_the_seed_decides(store: TokenStore) -> None:
    first, again, other = (split_store(store, seed, 0.3, 0.2) for seed in (5, 5, 6))
    assert first.train_examples.tolist() == again.train_examples.tolist()
    assert first.held_out_users.tolist() == again.held_out_users.tolist()
    assert first.held_out_users.tolist() != other.held_out_users.tolist()
    assert _held_out_places(first, store, 5) != _held_out_places(other, store, 5)


def test_every_place_and_pair_of_places_is_held_out_equally_often(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """3 of 10: a place with probability 3/10, a pair with 1/15; 4,000 independent users."""
    store = _store([10] * 4000, tmp_path_factory.mktemp("fair"))
    split = split_store(store, 0, 0.3, 0.0)
    chosen = np.zeros(store.num_examples)
    chosen[split.held_out_examples] = 1
    by_user = chosen.reshape(4000, 10)
    together = by_user.T @ by_user / 4000
    expected = np.where(np.eye(10, dtype=bool), 3 / 10, 1 / 15)
    spread = np.sqrt(expected * (1 - expected) / 4000)
    assert np.abs((together - expected) / spread).max() < 4.5  # of 55 near-normal deviations


def test_users_are_held_out_by_coins_of_their_own(tmp_path: Path) -> None:
    small, large = _store([2] * 500, tmp_path / "small"), _store([2] * 700, tmp_path / "large")
    few = split_store(small, 4, 0.0, 0.3).held_out_users
    many = split_store(large, 4, 0.0, 0.3).held_out_users
    assert few.tolist() == many[many < 500].tolist()
    assert abs(len(many) - 210) < 5 * np.sqrt(700 * 0.3 * 0.7)


@pytest.mark.parametrize("rule", ["random", "last"])
def test_of_some_users_by_coins_of_their_own_no_example_is_held_out(
    tmp_path: Path, rule: Rule
) -> None:
    small, large = _store([2] * 500, tmp_path / "small"), _store([2] * 700, tmp_path / "large")
    few, many, whole = (
        split_store(store, 4, 0.5, 0.3, rule=rule, from_users=share).held_out_examples
        for store, share in ((small, 0.2), (large, 0.2), (large, 1.0))
    )
    assert few.tolist() == many[many < 1000].tolist()
    assert set(many) < set(whole)
    assert abs(len(many) - 0.2 * len(whole)) < 5 * np.sqrt(len(whole) * 0.2 * 0.8)


def test_nobody_left_to_train_on(tmp_path: Path) -> None:
    message = r"data.held_out_users = 0.999999: leaves none of the 1 users"
    with pytest.raises(ConfigError, match=message):
        split_store(_store([3], tmp_path), 0, 0.1, 0.999999)


@pytest.mark.parametrize("user", [-1, 40])
def test_no_such_training_user(store: TokenStore, user: int) -> None:
    with pytest.raises(IndexError, match=f"user {user}: the split has 40 training users"):
        split_store(store, 0, 0.1, 0.0).user_examples(user)
