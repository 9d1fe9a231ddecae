"""The study of co-owned texts: who owns what, that all runs train on the same, and the attack."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsim.config import ModelConfig
from fedsim.experiments.studies.ganesh_2025 import co_owned_runs as runs
from fedsim.experiments.studies.ganesh_2025.co_owned import notes
from fedsim.experiments.studies.ganesh_2025.scenes import KNOWN, World, texts, world
from fedsim.report.schema import Privacy
from fedsim.runner.folder import RunFolder
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


def outcome(loss: float, epsilon: float | None = 16.0) -> runs.Outcome:
    privacy = Privacy.model_construct(epsilon=epsilon, delta=1e-4)
    return runs.Outcome(RunFolder(Path("none")), privacy, 1.0, 9, 4, 40.0, loss)


def test_the_rate_with_the_smaller_mean_loss_is_attacked(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two worlds each run is a control of the other: here both have the same split."""
    zeros = np.zeros(small.co_owned.store.num_examples)
    zeros[small.train] = 1.0
    monkeypatch.setattr(runs, "log_ratios", lambda *_: zeros)
    tried = {0.1: [outcome(3.0), outcome(5.0)], 0.4: [outcome(3.5), outcome(4.0)]}
    row = runs.attacked([small, small], runs.Case("random", 4, 16.0), tried)
    assert (row.rate, row.loss) == (0.4, 3.75)
    assert [a.auroc for a in row.attacks] == [a.auroc for a in row.controls] == [1.0, 1.0]


def test_notes_say_who_is_not_covered() -> None:
    attack = runs.Attack(0.6, 0.55, 0.65, 0.1)
    losses = {runs.BOUNDED[0]: 4.0, runs.BOUNDED[1]: 4.5, runs.NAIVE: 3.5}
    rows = [
        runs.Row(runs.Case(rule, 4, 16.0), 0.1, [outcome(loss)], [attack], [])
        for rule, loss in losses.items()
    ]
    said = notes(rows, [runs.Kept("random", 4, 30, 0.75, 4, {})])
    assert said[0] == "random: keeps 75.0% to 75.0% of the most that any rule could."
    assert "against random: the smaller mean loss in 1 of 1 cells" in said[1]
    assert "no ε covers listeners: the smaller mean loss in 0 of 1 cells" in said[2]
    assert said[3].endswith("interval lies above 0.5 in 2 of 2.")
    assert "no ε covers listeners" in said[4]
    assert "ε = 40.00 to 40.00" in said[5]
