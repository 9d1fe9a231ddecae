"""Texts with several owners, from a source to a promise: every owner moves at most K examples."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.accounting.accountants import epsilon
from fedsim.config import Config, parse_config
from fedsim.data.store.manifest import OWNERS
from fedsim.errors import ConfigError
from fedsim.materials import Materials, load_materials
from fedsim.plan import RoundPlan
from fedsim.registry import resolve
from fedsim.report.schema import load_report
from fedsim.runner.folder import RunFolder
from fedsim.runner.summary import privacy_block
from fedsim.sampling import Relation
from fedsim.state import ServerState
from fedsim.strategy import build_plan
from tests.conftest import WORDS, write_rows
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.light import light_config, write_config
from tests.unit.data.data_samples import graph_of

Row = dict[str, Any]

ELS: dict[str, dict[str, Any]] = {
    "data": {"owners_column": "readers", "held_out_users": 0.1},
    "strategy": {"name": "els", "cohort_size": None, "batch_size": 8, "group_size": 2},
}


def _rows() -> list[Row]:
    """300 texts of 24 users, each with up to two readers; nine of 33 people wrote nothing."""
    rng = np.random.default_rng(3)
    people = [*(f"user-{n}" for n in range(24)), *(f"reader-{n}" for n in range(9))]
    return [
        {
            "author": str(rng.choice(people[:24])),
            "body": " ".join(rng.choice(WORDS, rng.integers(4, 20))),
            "readers": [
                str(name) for name in rng.choice(people, rng.integers(0, 3), replace=False)
            ],
        }
        for _ in range(300)
    ]


@pytest.fixture(scope="module")
def mails(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("mails") / "mails.jsonl", _rows())


def _with(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {**ELS.get(name, {}), **sections.get(name, {})} for name in {**ELS, **sections}}


def _loaded(source: Path, **sections: dict[str, Any]) -> tuple[Config, Materials]:
    config = light_config(source, **_with(**sections))
    return config, load_materials(config.seed, config.data, config.model, "cpu")


def _plan(source: Path, **sections: dict[str, Any]) -> tuple[Materials, RoundPlan]:
    config, materials = _loaded(source, **sections)
    return materials, build_plan(config, materials)


def _owned(materials: Materials, plan: RoundPlan) -> Counter[int]:
    return Counter(graph_of(materials.store).of(plan.pool)[1].tolist())


@pytest.mark.parametrize("bounding", ["greedy", "random", "linear-program"])
def test_no_owner_has_more_in_the_pool_than_is_paid_for(bounding: str, mails: Path) -> None:
    materials, plan = _plan(mails, strategy={"bounding": bounding})
    assert max(_owned(materials, plan).values()) <= plan.cost.units_per_user == 2
    assert sum(plan.dropped.values()) == len(materials.split.train_examples) - len(plan.pool)
    assert plan.relation is Relation.FIXED_GRAPH
    assert any(
        "any text: its user and the other owners" in sentence for sentence in plan.assumptions
    )
    _, alone = _plan(mails, data={"user_column": None}, strategy={"bounding": bounding})
    assert any(
        "any text: all owners that the data name" in sentence for sentence in alone.assumptions
    )


def test_delta_is_compared_with_owners_who_can_be_more_than_declared_examples(mails: Path) -> None:
    config, materials = _loaded(mails, privacy={"declared_num_examples": 20, "delta": 1e-3})
    plan, owners = build_plan(config, materials), materials.num_protected
    assert owners > 20
    said = " ".join(privacy_block(config, plan, ServerState(0, {}), "", owners).assumptions)
    assert f"for n = {owners} owners, " in said


def test_the_price_is_that_of_els(mails: Path) -> None:
    _, plan = _plan(mails)
    asked = fedsim_ok(
        "account",
        "els",
        "--group-size=2",
        f"--sampling-probability={plan.sampling.probability}",
        f"--noise-multiplier={plan.noise_multiplier}",
        "--rounds=7",
        "--delta=1e-4",
        "--json",
    )
    expected = json.loads(asked.stdout)["epsilon"]
    assert epsilon(plan.cost, 7, 1e-4, plan.accountant, plan.relation) == pytest.approx(expected)


def _exchanged(rows: list[Row], owner: str) -> list[Row]:
    """The neighbour: other words in all that one owner co-owns."""
    return [
        {**row, "body": " ".join(["again"] * len(row["body"].split()))}
        if owner in (row["author"], *row["readers"])
        else row
        for row in rows
    ]


@pytest.mark.parametrize("selection", ["random", "least-demand"])
def test_exchanging_what_an_owner_co_owns_moves_only_that(
    selection: str, mails: Path, tmp_path: Path
) -> None:
    """The same pool, the same split, and other gradients of K examples at the most."""
    strategy = {"selection": selection, "group_size": 3}
    materials, plan = _plan(mails, strategy=strategy)
    graph = graph_of(materials.store)
    owner = max(owner for owner in _owned(materials, plan) if owner >= materials.store.num_users)
    names = (materials.store.path / OWNERS).read_text(encoding="utf-8").splitlines()
    listener = json.loads(names[owner - materials.store.num_users])
    other = write_rows(tmp_path / "other.jsonl", _exchanged(_rows(), listener))
    updates, pools, splits = [], [], []
    for source in (mails, other):
        materials, plan = _plan(source, strategy=strategy)
        task = resolve("tasks", plan.task.name, "task")(materials, **plan.task.options)
        start = materials.model.initial_parameters()
        pools.append(plan.pool.tolist())
        splits.append(materials.split.held_out_examples.tolist())
        updates.append([task.update(start, task.unit(key, 0), 0) for key in pools[-1]])
    assert pools[0] == pools[1]
    assert splits[0] == splits[1]
    moved = {
        key
        for key, one, two in zip(pools[0], *updates, strict=True)
        if any(not torch.equal(one.values[name], two.values[name]) for name in one.values)
    }
    assert moved == set(pools[0]) & set(graph.examples_of(owner).tolist())
    assert 0 < len(moved) <= 3


def test_one_owner_a_text_is_todays_els_to_the_bit(tmp_path: Path) -> None:
    """Store, split, pool, coins and noise: the same weights come out of the command."""
    alone = [{**row, "readers": [row["author"]]} for row in _rows()]
    source = write_rows(tmp_path / "alone.jsonl", alone)
    weights = []
    for name, data in (("owners", {}), ("plain", {"owners_column": None})):
        config = write_config(tmp_path / f"{name}.toml", source, **_with(data=data))
        fedsim_ok("run", config, "--out", tmp_path / name)
        weights.append((tmp_path / name / "model" / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    assert "gives every owner (ε = " in load_report(tmp_path / "owners").privacy.statement
    assert "gives every user (ε = " in load_report(tmp_path / "plain").privacy.statement


def test_every_place_names_owners_and_relation(mails: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.toml", mails, **_with())
    done = fedsim_ok("run", config, "--out", tmp_path / "run")
    phrase = Relation.FIXED_GRAPH.phrase
    report = load_report(tmp_path / "run").privacy
    assert (report.unit, report.relation) == ("owner", phrase)
    card = (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    page = RunFolder(tmp_path / "run").path / "report.html"
    for text in (done.stdout + done.stderr, report.statement, card, page.read_text("utf-8")):
        assert phrase in text
        assert "owner" in text
    assert "for n = 33 owners" in card
    fedsim_ok("account", "verify", tmp_path / "run" / "model")
    fedsim_ok("evaluate", tmp_path / "run")


REFUSED: list[tuple[dict[str, dict[str, Any]], str]] = [
    (
        {"strategy": {"name": "uls", "batch_size": None, "cohort_size": 5}},
        "strategy.name = 'uls': relation = 'fixed-graph': user-level sampling has no proved price",
    ),
    ({"privacy": {"relation": "add-or-remove-one"}}, "privacy.relation = 'add-or-remove-one': the"),
    (
        {"data": {"owners_column": None}, "privacy": {"relation": "fixed-graph"}},
        "privacy.relation = 'fixed-graph': the data does not have",
    ),
    (
        {"data": {"owners_column": None}, "strategy": {"bounding": "greedy"}},
        "strategy.bounding = 'greedy': is for texts with several owners",
    ),
    (
        {"data": {"owners_column": None}, "strategy": {"selection": "least-demand"}},
        "strategy.selection = 'least-demand': is for texts with several owners",
    ),
    (
        {"strategy": {"selection": "highest-perplexity"}},
        "the text of one owner would decide which texts of others",
    ),
    (
        {"strategy": {"sampling": {"kind": "cyclic", "groups": 2}}},
        "cyclic sampling keeps an owner's units in one group",
    ),
    ({"strategy": {"group_size": 0}}, "strategy.group_size"),
    ({"data": {"owners_column": "author"}}, "data.owners_column = 'author': holds str values"),
    ({"data": {"owners_column": "nobody"}}, "data.owners_column = 'nobody': no such column"),
    ({"strategy": {"clip": {"adaptive": {"quantile": 0.5}, "l2_clip_norm": 1.0}}}, "fixed-graph"),
]


@pytest.mark.parametrize(("sections", "message"), REFUSED)
def test_what_has_no_proof_is_wrong_input(
    sections: dict[str, dict[str, Any]], message: str, mails: Path
) -> None:
    raw = light_config(mails, **ELS).model_dump(exclude_none=True, mode="json")
    for name, section in sections.items():
        raw[name] = {**raw.get(name, {}), **section}
        raw[name] = {key: value for key, value in raw[name].items() if value is not None}
    with pytest.raises(ConfigError) as found:
        config = parse_config(raw)
        build_plan(config, load_materials(config.seed, config.data, config.model, "cpu"))
    assert message in str(found.value)


def test_the_rounds_that_are_apart_are_an_owners(mails: Path) -> None:
    strategy = {"group_size": 1, "batch_size": None, "sampling": {"kind": "cyclic", "groups": 2}}
    _, plan = _plan(mails, strategy=strategy, privacy={"mechanism": "banded"})
    assert any(
        "are 2 or more apart" in said and "of one owner" in said for said in plan.assumptions
    )


def test_a_store_with_owners_is_not_trained_on_as_if_it_had_none(mails: Path) -> None:
    config, materials = _loaded(mails)
    data = config.data.model_copy(update={"owners_column": None})
    with pytest.raises(ConfigError, match=r"data.owners_column = None: the store has texts with"):
        build_plan(config.model_copy(update={"data": data}), materials)


def test_inspect_shows_the_graph_and_what_is_kept(mails: Path, tmp_path: Path) -> None:
    build = partial(fedsim, "data", "build", mails, "--user-column=author", "--text-column=body")
    done = build(
        "--set=data.owners_column=readers", "--tokenizer=tiny-gpt", "--out", tmp_path / "store"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(fedsim("data", "inspect", tmp_path / "store", "--json").stdout)
    assert (found["owners"]["owners"], found["owners"]["wrote_nothing"]) == (33, 9)
    assert found["owners"]["owners_per_example"]["1"] == 3
    kept = found["owners"]["kept"]
    assert [row["group_size"] for row in kept][:3] == [1, 2, 4]
    assert all(
        row["random random"] <= row["greedy random"] <= row["greedy least-demand"] <= 300
        for row in kept
    )
    plain = fedsim("data", "inspect", tmp_path / "store")
    assert "33 owners; 9 are the user of no text" in plain.stdout.replace("\n", " ")
