"""Bounding keeps no owner over the group size, leaves no room unused, and looks at no text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fedsim.data.bounding import Bounded, Bounding, Order, bound, most_examples
from fedsim.data.selection import pool
from fedsim.data.split import split_store
from fedsim.data.store import TokenStore
from tests.unit.data.data_samples import build, graph_of

Record = tuple[str | None, str | None, tuple[str, ...]]
RULES, ORDERS = get_args(Bounding), get_args(Order)


def _records(count: int, people: int, others: float, seed: int) -> list[Record]:
    """Texts of people who take part log-normally often, each with a Poisson number of others."""
    rng = np.random.default_rng(seed)
    shares = rng.lognormal(0.0, 1.0, people)
    drawn = iter(rng.choice(people, count * 30, p=shares / shares.sum()))
    return [
        (
            f"p{next(drawn)}",
            "x" * int(rng.integers(1, 5)),
            tuple(f"p{next(drawn)}" for _ in range(rng.poisson(others))),
        )
        for _ in range(count)
    ]


def _store(
    tmp_path: Path, count: int, people: int, others: float = 1.5, seed: int = 0
) -> TokenStore:
    records = _records(count, people, others, seed)
    return build(records, tmp_path / f"store-{seed}", co_owned=True, sequence_length=64)


def _kept(
    store: TokenStore, group_size: int, rule: Bounding, order: Order, base: int = 1
) -> Bounded:
    everything = np.arange(store.num_examples)
    return bound(store, everything, group_size=group_size, rule=rule, order=order, base=base)


def _counted(store: TokenStore, kept: Bounded) -> Counter[int]:
    """Count examples by owner without the graph's own functions."""
    graph = graph_of(store)
    offsets, owners = graph.offsets.tolist(), graph.owners.tolist()
    chosen = kept.examples.tolist()
    return Counter(owner for e in chosen for owner in set(owners[offsets[e] : offsets[e + 1]]))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("group_size", [1, 3, 1000])
def test_no_owner_is_over_the_group_size(
    group_size: int, rule: Bounding, order: Order, tmp_path: Path
) -> None:
    store = _store(tmp_path, 500, 60)
    kept = _kept(store, group_size, rule, order)
    counted = _counted(store, kept)
    assert max(counted.values()) <= group_size
    assert sum(kept.dropped.values()) == store.num_examples - len(kept.examples)
    assert np.array_equal(kept.examples, np.unique(kept.examples))
    if group_size == 1000:
        assert len(kept.examples) == store.num_examples
    elif rule != "random":  # nothing can be added
        graph = graph_of(store)
        left = set(range(store.num_examples)) - set(kept.examples.tolist())
        for example in left:
            owners = graph.of(np.array([example]))[1].tolist()
            assert any(counted[owner] == group_size for owner in owners)


def test_reasons_name_whose_room_was_missing(tmp_path: Path) -> None:
    texts: list[Record] = [("ann", "a", ("bob",)), ("bob", "longest", ()), ("cy", "c", ("bob",))]
    store = build([*texts, ("bob", "d", ())], tmp_path / "s", co_owned=True, sequence_length=64)
    dropped = _kept(store, 1, "greedy", "longest").dropped
    assert dropped == {
        "examples beyond a user's group_size": 1,  # of bob's two
        "examples beyond another owner's group_size": 2,  # bob's, in ann's and cy's
    }


@pytest.mark.parametrize("seed", range(4))
def test_greedy_is_close_to_the_optimum_and_random_is_not(seed: int, tmp_path: Path) -> None:
    """`fedsim bench bounding` has 20 graphs of 10,000 examples; these are smaller."""
    store = _store(tmp_path, 2000, 200, seed=seed)
    most = most_examples(graph_of(store), np.arange(store.num_examples), 6)
    sizes = {
        (rule, order): len(_kept(store, 6, rule, order).examples) / most
        for rule in RULES
        for order in ("random", "least-demand")
    }
    assert 0.98 < sizes["greedy", "least-demand"] <= 1.0
    assert 0.99 < sizes["linear-program", "random"] <= 1.0
    assert sizes["random", "random"] < 0.8
    assert sizes["random", "random"] < sizes["greedy", "random"] < sizes["greedy", "least-demand"]


@pytest.mark.parametrize("rule", RULES)
def test_texts_decide_nothing(rule: Bounding, tmp_path: Path) -> None:
    """With all that one owner co-owns exchanged, the same examples are kept."""
    records = _records(400, 40, 1.5, 9)
    owner = Counter(name for _, _, names in records for name in names).most_common(1)[0][0]
    other = [
        (user, "zz" if owner in (user, *names) else text, names) for user, text, names in records
    ]
    first, second = (
        build(rows, tmp_path / name, co_owned=True, sequence_length=64)
        for name, rows in (("first", records), ("second", other))
    )
    for order in ("random", "least-demand"):
        kept = [_kept(store, 4, rule, order).examples.tolist() for store in (first, second)]
        assert kept[0] == kept[1]


@pytest.mark.parametrize("rule", ["greedy", "random"])
def test_draws_are_addressed(rule: Bounding, tmp_path: Path) -> None:
    store = _store(tmp_path, 400, 40)
    first, again, other = (_kept(store, 4, rule, "random", base).examples for base in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_order_by_length(tmp_path: Path) -> None:
    texts: list[Record] = [("ann", "x" * n, ("bob",)) for n in (3, 9, 1, 5)]
    store = build(texts, tmp_path / "store", co_owned=True, sequence_length=64)
    assert _kept(store, 2, "greedy", "longest").examples.tolist() == [1, 3]
    assert _kept(store, 2, "greedy", "shortest").examples.tolist() == [0, 2]
    for rule in RULES:  # whole parts of the linear program apart, the order decides
        kept = [_kept(store, 2, rule, order).examples for order in ("longest", "shortest")]
        assert store.lengths(kept[0]).sum() >= store.lengths(kept[1]).sum()


def test_the_pool_with_one_owner_a_text_is_todays(tmp_path: Path) -> None:
    records = [(user, text) for user, text, _ in _records(300, 20, 0.0, 3)]
    plain = build(records, tmp_path / "plain", sequence_length=64)
    owned = build(
        [(*row, ()) for row in records], tmp_path / "owned", co_owned=True, sequence_length=64
    )
    for bounding in RULES:
        pools = [
            pool(
                split_store(store, 2, 0.1, 0.1),
                store,
                group_size=3,
                rule="random",
                seed=2,
                bounding=bounding,
            )
            for store in (plain, owned)
        ]
        assert pools[0].examples.tolist() == pools[1].examples.tolist()
        assert pools[0].dropped == pools[1].dropped
