"""The study of co-owned texts: who owns what, that all runs train on the same, and the attack."""

from __future__ import annotations

import numpy as np
import pytest

from fedsim.config import ModelConfig
from fedsim.experiments.studies.ganesh_2025 import co_owned_runs as runs
from fedsim.experiments.studies.ganesh_2025.scenes import KNOWN, World, texts, world
from tests.unit.data.data_samples import graph_of


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> World:
    model = ModelConfig(trainable="ln_", pretraining_steps=0)
    return world(1, tmp_path_factory.mktemp("scenes"), model, 60, 0.2)


def test_all_who_speak_in_a_scene_own_it_and_every_second_speaker_only_listens() -> None:
    scenes = [
        [("ann", "1"), ("bob", "2"), ("cid", "3"), ("ann", "4")],
        [("dora", "5"), ("cid", "6")],
        [("ann", "7")],
    ]
    rows, scored = texts(scenes)  # bob and dora wrote nothing; every tenth text is scored
    assert [(row["speaker"], row["text"], row["listeners"]) for row in [*scored, *rows]] == [
        ("ann", "1", ["bob", "cid"]),
        ("ann", "4", ["bob", "cid"]),
        ("ann", "7", []),
        ("cid", "3", ["ann", "bob"]),
        ("cid", "6", ["dora"]),
    ]
    assert len(scored) == 1


def test_nothing_of_a_held_out_owner_is_trained_on_in_any_run(small: World) -> None:
    graph, naive = graph_of(small.co_owned.store), small.naive
    assert naive.store.graph is None
    owned = graph.degrees(small.train)
    assert owned[small.co_owned.split.held_out_owners].sum() == 0
    assert len(naive.split.train_examples) == len(small.train) > 100
    for mine, theirs in zip(small.train, naive.split.train_examples, strict=True):
        assert (small.co_owned.store.example(mine) == naive.store.example(theirs)).all()


def test_members_texts_are_trained_on_and_the_others_are_not(small: World) -> None:
    members, others = small.listeners()
    graph = graph_of(small.co_owned.store)
    assert min(len(members), len(others)) >= 5
    assert all(0 < len(known) <= KNOWN for known in [*members, *others])
    assert np.isin(np.concatenate(members), small.train).all()
    assert not np.isin(np.concatenate(others), small.train).any()
    counts, owners = graph.of(np.concatenate(members))
    assert (np.add.reduceat(owners >= graph.num_users, np.cumsum(counts) - counts) > 0).all()


@pytest.mark.parametrize("rule", runs.RULES)
def test_a_rule_keeps_at_most_k_of_every_owner_and_the_naive_run_does_not(
    small: World, rule: str
) -> None:
    graph = graph_of(small.co_owned.store)
    for size in (1, 4):
        assert graph.degrees(runs.kept(small, rule, size)).max() == size
        assert small.most(runs.kept(small, rule, size)) == size
        naive = runs.kept(small, runs.NAIVE, size)
        assert np.isin(naive, small.train).all()
        assert graph.degrees(naive)[: graph.num_users].max() > size
        assert small.most(naive) > size
        speakers = np.searchsorted(small.co_owned.store.user_offsets, naive, side="right")
        assert np.bincount(speakers).max() == size


def test_the_naive_config_names_no_owner_and_differs_in_nothing_else(small: World) -> None:
    bounded, naive = (
        runs.Case(rule, 4, 16.0).config(small, runs.QUICK, 0.1)
        for rule in (runs.BOUNDED[0], runs.NAIVE)
    )
    assert (bounded.data.unit, naive.data.unit) == ("owner", "user")
    assert bounded.data.owners_column == "listeners"
    assert naive.data.owners_column is None
    assert naive.strategy.group_size == bounded.strategy.group_size
    for section in ("model", "server", "training"):
        assert getattr(bounded, section) == getattr(naive, section)


def test_the_attack_finds_what_separates_the_listeners_and_nothing_else(small: World) -> None:
    ratios = np.zeros(small.co_owned.store.num_examples)
    chance = runs.attack(small, ratios)
    assert (chance.auroc, chance.gap, chance.low, chance.high) == (0.5, 0.0, 0.5, 0.5)
    ratios[small.train] = 2.0
    found = runs.attack(small, ratios)
    assert (found.auroc, found.gap, found.low) == (1.0, 2.0, 1.0)
    assert runs.attack(small, -ratios).auroc == 0.0
