"""Splitting and selecting: exact counts, fair draws, and no user that depends on another."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.data.selection import Rule, pool, select
from fedsim.data.split import Split, split_store
from fedsim.data.store import TokenStore
from fedsim.errors import ConfigError
from tests.unit.data_samples import build


def _store(sizes: list[int], folder: Path) -> TokenStore:
    """User u has sizes[u] examples; example number e of a user has 3 + e % 5 tokens."""
    records = [
        (f"user {user}", "x" * (1 + example % 5))
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


def test_nobody_left_to_train_on(tmp_path: Path) -> None:
    message = r"data.held_out_users = 0.999999: leaves none of the 1 users"
    with pytest.raises(ConfigError, match=message):
        split_store(_store([3], tmp_path), 0, 0.1, 0.999999)


@pytest.mark.parametrize("user", [-1, 40])
def test_no_such_training_user(store: TokenStore, user: int) -> None:
    with pytest.raises(IndexError, match=f"user {user}: the split has 40 training users"):
        split_store(store, 0, 0.1, 0.0).user_examples(user)


@pytest.mark.parametrize(
    ("rule", "expected"), [("longest", [10, 12, 13]), ("shortest", [11, 12, 14])]
)
def test_by_length_with_ties_to_the_smaller_index(rule: Rule, expected: list[int]) -> None:
    examples, lengths = np.arange(10, 16), np.array([9, 3, 7, 7, 3, 7])
    chosen = select(examples, lengths, 3, rule, np.random.default_rng(0))
    assert chosen.tolist() == expected


@settings(deadline=None)
@given(size=st.integers(0, 12), group_size=st.integers(1, 12), seed=st.integers(0, 99))
def test_random_is_without_replacement_and_capped(size: int, group_size: int, seed: int) -> None:
    examples = np.arange(size) * 3
    chosen = select(
        examples, np.ones(size, np.int64), group_size, "random", np.random.default_rng(seed)
    )
    assert len(chosen) == min(size, group_size)
    assert set(chosen) <= set(examples)
    assert (np.diff(chosen) > 0).all()


def test_random_gives_every_example_the_same_chance() -> None:
    examples, lengths = np.arange(8), np.arange(8)
    generator = np.random.default_rng(0)
    draws = [select(examples, lengths, 3, "random", generator) for _ in range(4000)]
    counts = np.bincount(np.concatenate(draws), minlength=8)
    expected = 4000 * 3 / 8
    assert np.abs(counts - expected).max() < 4.5 * math.sqrt(expected * 5 / 8)


@pytest.mark.parametrize("rule", ["random", "longest", "shortest"])
def test_the_pool_is_capped_per_user_and_counts_what_it_drops(
    store: TokenStore, rule: Rule
) -> None:
    split = split_store(store, 0, 0.1, 0.25)
    examples, num_dropped = pool(split, store, 4, rule, seed=9)
    assert len(set(examples)) == len(examples)
    for index in range(split.num_users):
        mine = np.intersect1d(examples, split.user_examples(index))
        assert len(mine) == min(4, split.user_sizes[index])
    assert num_dropped == np.maximum(split.user_sizes - 4, 0).sum() > 0
    assert pool(split, store, 4, rule, seed=9).examples.tolist() == examples.tolist()


def test_a_users_part_of_the_pool_does_not_depend_on_who_else_trains(store: TokenStore) -> None:
    everyone = split_store(store, 0, 0.0, 0.0)
    some = split_store(store, 0, 0.0, 0.5)
    whole, part = (pool(split, store, 4, "random", seed=9).examples for split in (everyone, some))
    theirs = np.concatenate([store.user_examples(user) for user in some.users.tolist()])
    assert np.intersect1d(whole, theirs).tolist() == part.tolist()
