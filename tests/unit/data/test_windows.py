"""Windows over a user's text: contiguous, training text only, anywhere with equal probability."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from fedsim.data.selection import cohort_block, windows
from fedsim.data.split import Split, split_store
from fedsim.data.store import TokenStore
from fedsim.seeding import base
from tests.unit.data.data_samples import build

LENGTH = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    rng = np.random.default_rng(0)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    records = [
        (f"user-{user}", "".join(rng.choice(letters, rng.integers(1, 7))))
        for user, size in enumerate([1, 3, 20, 60])
        for _ in range(size)
    ]
    folder = tmp_path_factory.mktemp("windows") / "s"
    return build(records, folder, sequence_length=LENGTH)


@pytest.fixture(scope="module")
def split(store: TokenStore) -> Split:
    return split_store(store, 0, 0.3, 0.0)


def text_of(store: TokenStore, split: Split, user: int) -> list[int]:
    return [token for e in split.user_examples(user).tolist() for token in store.example(e)]


def window_of(store: TokenStore, split: Split, user: int, group_size: int, start: int) -> list[int]:
    tokens, lengths, _ = windows(split, store, np.array([user]), group_size=group_size, base=start)
    return [t for row, n in zip(tokens.tolist(), lengths.tolist(), strict=True) for t in row[:n]]


@pytest.mark.parametrize("group_size", [1, 2, 5, 1000])
@pytest.mark.parametrize("user", [0, 1, 2, 3])
def test_a_window_is_a_run_of_the_users_training_text(
    store: TokenStore, split: Split, user: int, group_size: int
) -> None:
    whole = text_of(store, split, user)
    size = min(len(whole), group_size * LENGTH)
    for start in range(20):
        window = window_of(store, split, user, group_size, start)
        assert len(window) == size
        assert any(whole[at : at + size] == window for at in range(len(whole) - size + 1))


def test_the_cut_is_even_and_users_stand_in_order(store: TokenStore, split: Split) -> None:
    users = np.array([3, 0, 2])
    tokens, lengths, offsets = windows(split, store, users, group_size=3, base=5)
    assert tokens.shape == (len(lengths), lengths.max())
    assert lengths.max() <= LENGTH
    for place, user in enumerate(users.tolist()):
        rows = slice(offsets[place], offsets[place + 1])
        assert np.ptp(lengths[rows]) <= 1
        alone = windows(split, store, np.array([user]), group_size=3, base=5)
        assert alone[1].tolist() == lengths[rows].tolist()
        width = alone[0].shape[1]
        assert alone[0].tolist() == tokens[rows, :width].tolist()


def starts(
    store: TokenStore, split: Split, count: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    """Return where `count` windows of user 3 begin, and how many beginnings there are."""
    whole = text_of(store, split, 3)
    size = 2 * LENGTH
    at = {tuple(whole[first : first + size]): first for first in range(len(whole) - size + 1)}
    assert len(at) == len(whole) - size + 1  # every window is another text
    found = [
        at[tuple(window_of(store, split, 3, 2, base(seed, "selection", 0)))]
        for seed in range(count)
    ]
    return np.array(found), len(at)


def test_every_beginning_is_equally_likely(store: TokenStore, split: Split) -> None:
    found, possible = starts(store, split, 4000)
    bins = np.bincount(found * 16 // possible, minlength=16)
    edges = np.ceil(np.arange(17) * possible / 16)
    expected = 4000 * np.diff(edges) / possible
    assert chisquare(bins, expected).pvalue > 1e-3


def test_a_cohort_takes_another_window_each_round(store: TokenStore, split: Split) -> None:
    users = np.array([2, 3])
    blocks = [
        cohort_block(split, store, users, group_size=2, rule="random-chunk", seed=1, round=round)
        for round in (0, 0, 1)
    ]
    assert blocks[0].tokens.tolist() == blocks[1].tokens.tolist()
    assert blocks[0].tokens.tolist() != blocks[2].tokens.tolist()
