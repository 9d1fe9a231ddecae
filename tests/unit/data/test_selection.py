"""Selecting: fair draws without replacement, capped, and nobody's depend on who else is there."""

from collections import Counter
from itertools import combinations, pairwise, permutations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from fedsim.data.selection import Rule, cohort_block, pool, select
from fedsim.data.split import Split, split_store
from fedsim.data.store import TokenStore
from fedsim.seeding import base, hashes
from tests.unit.data.test_split import _store

Lengths = npt.NDArray[np.int64]
SIZES = [1, 2, 5, 10, 15, 40, 1, 100] * 5


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return _store(SIZES, tmp_path_factory.mktemp("selection"))


@pytest.fixture(scope="module")
def split(store: TokenStore) -> Split:
    return split_store(store, 0, 0.1, 0.25)


class Lengthy(TokenStore):
    """A store of which only the lengths are asked for, and what users and examples are."""

    def __init__(self, lengths: Lengths, keys: Lengths | None = None) -> None:
        self._lengths = lengths
        numbers = np.arange(len(lengths))
        self.user_keys = hashes(1, numbers)
        self.example_keys = hashes(2, numbers if keys is None else keys)

    def lengths(self, indices: Lengths) -> Lengths:
        return self._lengths[indices]


def _people(*sizes: int) -> Split:
    users = np.arange(len(sizes))
    empty = np.zeros(0, np.int64)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    return Split(users, empty, empty, np.arange(sum(sizes)), offsets)


@pytest.mark.parametrize("rule", ["longest", "shortest"])
def test_by_length_with_ties_by_what_the_examples_are(rule: Rule) -> None:
    """In whatever order they stand, the same texts are chosen, and not those that stand first."""
    lengths, texts = np.array([9, 3, 7, 7, 3, 7]), np.arange(6)
    found, firsts = set(), 0
    for order in permutations(range(6)):
        store = Lengthy(lengths[list(order)], texts[list(order)])
        chosen = select(_people(6), store, np.array([0]), group_size=3, rule=rule, base=0)
        found.add(frozenset(order[place] for place in chosen.examples))
        firsts += sorted(np.argsort(-lengths[list(order)], kind="stable")[:3]) == sorted(
            chosen.examples
        )
    (texts_chosen,) = found
    certain = {"longest": {0}, "shortest": {1, 4}}[rule]
    assert certain < texts_chosen
    assert len(texts_chosen) == 3
    assert firsts < 720


def test_every_rule_chooses_otherwise_where_it_can() -> None:
    """One user, five rules, five choices; the random one is a draw that is none of the others."""
    lengths = Lengthy(np.array([2, 9, 4, 5, 6, 7, 3, 8]))
    losses = np.array([3.0, 1.0, 0.5, np.inf, 2.0, 0.0, 4.0, 1.5], np.float32)
    rules: list[Rule] = ["longest", "shortest", "highest-perplexity", "lowest-perplexity", "random"]
    chosen = {
        rule: select(
            _people(8), lengths, np.array([0]), group_size=2, rule=rule, base=1, losses=losses
        ).examples.tolist()
        for rule in rules
    }
    assert chosen["longest"] == [1, 7]
    assert chosen["shortest"] == [0, 6]
    assert chosen["highest-perplexity"] == [3, 6]
    assert chosen["lowest-perplexity"] == [2, 5]
    assert len({tuple(choice) for choice in chosen.values()}) == len(rules)


def test_losses_belong_to_training_examples_and_ties_go_by_what_they_are() -> None:
    empty = np.zeros(0, np.int64)
    train = np.array([1, 2, 4, 7, 8, 9])  # what is held out has no loss
    split = Split(np.arange(2), empty, empty, train, np.array([0, 3, 6]))
    losses = np.array([5.0, 5.0, 5.0, 0.0, 1e-30, 0.0], np.float32)
    store = Lengthy(np.ones(10, np.int64))
    chosen = select(
        split,
        store,
        np.array([1, 0]),
        group_size=2,
        rule="lowest-perplexity",
        base=0,
        losses=losses,
    )
    by_key = sorted([1, 2, 4], key=lambda example: int(store.example_keys[example]))
    assert chosen.examples.tolist() == [7, 9, *sorted(by_key[:2])]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=12),
    group_size=st.integers(1, 40),
    rule=st.sampled_from(["random", "longest", "shortest"]),
    seed=st.integers(0, 99),
)
def test_a_cohort_is_capped_and_without_replacement_and_each_user_alone(
    sizes: list[int], group_size: int, rule: Rule, seed: int
) -> None:
    people = _people(*sizes)
    rng = np.random.default_rng(seed)
    store = Lengthy(rng.integers(2, 6, sum(sizes)))
    users = rng.permutation(len(sizes))[: rng.integers(1, len(sizes) + 1)]
    chosen = select(people, store, users, group_size=group_size, rule=rule, base=seed)
    assert chosen.counts.tolist() == [min(sizes[user], group_size) for user in users]
    bounds = np.concatenate(([0], np.cumsum(chosen.counts))).tolist()
    for user, (first, last) in zip(users, pairwise(bounds), strict=True):
        mine = chosen.examples[first:last]
        assert (np.diff(mine) > 0).all()
        assert set(mine) <= set(people.user_examples(int(user)))
        one = np.array([user])
        alone = select(people, store, one, group_size=group_size, rule=rule, base=seed)
        assert alone.examples.tolist() == mine.tolist()
        if rule != "random":
            lengths = store.lengths(people.user_examples(int(user)))
            best = np.sort(lengths if rule == "shortest" else -lengths)[:group_size]
            assert np.sort(np.abs(store.lengths(mine))).tolist() == np.sort(np.abs(best)).tolist()


def _draws(size: int, group_size: int, count: int) -> Counter[object]:
    """Return how often each set was drawn from `size` examples, over users and over rounds."""
    people, nobodys = _people(*[size] * 100), Lengthy(np.ones(100 * size, np.int64))
    sets: Counter[object] = Counter()
    users = np.arange(100)
    for round in range(count // 100):
        start = base(5, "selection", round)
        found = select(people, nobodys, users, group_size=group_size, rule="random", base=start)
        places = found.examples.reshape(100, group_size) - size * users[:, None]
        sets.update(map(tuple, places.tolist()))
    return sets


def _p_value(size: int, group_size: int, sets: Counter[object]) -> float:
    return float(chisquare([sets[one] for one in combinations(range(size), group_size)]).pvalue)


@pytest.mark.parametrize(("size", "group_size"), [(5, 1), (5, 2), (7, 3), (9, 8), (33, 2)])
def test_every_set_of_examples_is_equally_likely(size: int, group_size: int) -> None:
    assert _p_value(size, group_size, _draws(size, group_size, 20_000)) > 1e-4


def test_rounds_and_users_draw_independently() -> None:
    """The same pair of one user in two rounds, or of two users in a round, is chance alone."""
    people, nobodys = _people(*[6] * 20_000), Lengthy(np.ones(120_000, np.int64))
    users = np.arange(20_000)
    first, second = (
        select(
            people, nobodys, users, group_size=1, rule="random", base=base(1, "selection", r)
        ).examples
        % 6
        for r in (0, 1)
    )
    for one, other in ((first, second), (first[:-1], first[1:])):
        pairs = np.bincount(6 * one + other, minlength=36)
        assert chisquare(pairs).pvalue > 1e-4


@pytest.mark.parametrize("rule", ["random", "longest", "shortest"])
def test_a_block_holds_what_each_user_brings_alone(
    store: TokenStore, split: Split, rule: Rule
) -> None:
    users = np.random.default_rng(3).permutation(split.num_users)
    options = {"group_size": 4, "rule": rule, "seed": 3, "round": 7}
    block = cohort_block(split, store, users, **options)  # type: ignore[arg-type]
    assert block.tokens.dtype == block.lengths.dtype == np.int64
    assert block.tokens.shape[1] == block.lengths.max()
    for user, (first, last) in zip(users, pairwise(block.offsets.tolist()), strict=True):
        alone = cohort_block(split, store, np.array([user]), **options)  # type: ignore[arg-type]
        assert alone.lengths.tolist() == block.lengths[first:last].tolist()
        width = alone.tokens.shape[1]
        assert (block.tokens[first:last, :width] == alone.tokens).all()
        assert not block.tokens[first:last, width:].any()


def test_nobody_brings_nothing(store: TokenStore, split: Split) -> None:
    nobody = np.zeros(0, np.int64)
    block = cohort_block(split, store, nobody, group_size=4, rule="random", seed=0, round=0)
    assert (block.tokens.shape, block.lengths.shape) == ((0, 0), (0,))
    assert block.offsets.tolist() == [0]


@pytest.mark.parametrize("rule", ["random", "longest", "shortest"])
def test_the_pool_is_capped_per_user_and_counts_what_it_drops(
    store: TokenStore, rule: Rule
) -> None:
    split = split_store(store, 0, 0.1, 0.25)
    examples, dropped = pool(split, store, group_size=4, rule=rule, seed=9)
    assert len(set(examples)) == len(examples)
    for index in range(split.num_users):
        mine = np.intersect1d(examples, split.user_examples(index))
        assert len(mine) == min(4, split.user_sizes[index])
    assert sum(dropped.values()) == np.maximum(split.user_sizes - 4, 0).sum() > 0
    assert (
        pool(split, store, group_size=4, rule=rule, seed=9).examples.tolist() == examples.tolist()
    )
