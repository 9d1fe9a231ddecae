"""Owners who wrote nothing are a group of their own: who they are, their texts, what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.attacks.charts import attack_chart
from fedsim.attacks.folder import render_attack
from fedsim.attacks.samples import known_samples
from fedsim.attacks.user_inference import attack_run
from fedsim.config import Config
from fedsim.data.split import split_store
from fedsim.evaluation import score_cache
from fedsim.evaluation.scoring import score_examples
from fedsim.materials import Materials, load_materials
from fedsim.report.attack_report import AttackReport
from fedsim.runner.launch import run
from fedsim.strategy import build_plan
from tests.attacks.conftest import attacked_config
from tests.conftest import WORDS, write_rows
from tests.helpers.commands import fedsim_ok

THEIRS = (
    "love death heart night day good great world hand eyes blood speak power heaven honour father "
    "mother brother sword crown grace prince queen soldier horse dead name time woman house fear "
    "hope tongue head face light fire earth sea soul"
)
ELS = {"name": "els", "batch_size": 5, "cohort_size": None, "rounds": 2, "group_size": 1}


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A JSONL of 30 writers and 40 listeners, whom they tell a word of their own four times."""
    path = tmp_path_factory.mktemp("mail") / "mail.jsonl"
    rng = np.random.default_rng(12)
    theirs, rows = THEIRS.split(), []
    for number in range(600):
        to = rng.choice(len(theirs), 1 + (number % 5 == 0), replace=False)
        body = " ".join([*rng.choice(WORDS, 4), *(theirs[one] for one in to for _ in range(4))])
        names = [f"listener-{one}" for one in to] + ["writer-3"] * (number % 7 == 0)
        rows.append({"author": f"writer-{number % 30}", "body": body, "to": names})
    return write_rows(path, rows)


def config_of(mail: Path, **strategy: object) -> Config:
    data: dict[str, object] = {"owners_column": "to", "canaries": None, "held_out_users": 0.3}
    return attacked_config(mail, data=data, strategy=strategy)


def loaded(config: Config) -> Materials:
    return load_materials(config.seed, config.data, config.model, "cpu")


@pytest.fixture(scope="module")
def report(mail: Path, tmp_path_factory: pytest.TempPathFactory) -> AttackReport:
    folder = run(config_of(mail), tmp_path_factory.mktemp("listened") / "run").path
    done = fedsim_ok("attack", folder, "--samples", "2", "--checkpoints")
    assert "listeners: " in done.stdout
    return AttackReport.model_validate_json((folder / "attack" / "attack.json").read_text())


def test_sides_and_texts_by_a_plain_loop(mail: Path) -> None:
    """Members own a pooled example, others are held out; texts are what nobody trains on."""
    config = config_of(mail, **ELS)
    materials = loaded(config)
    store, split, pool = materials.store, materials.split, build_plan(config, materials).pool
    known = known_samples(store, split, config.data, config.seed, pool)
    graph = store.graph
    assert graph is not None
    owners = [graph.of(np.array([e]))[1].tolist() for e in range(store.num_examples)]
    members = {owner for example in pool.tolist() for owner in owners[example]}
    assert members < {o for e in split.train_examples.tolist() for o in owners[e]}
    assert known.trained.tolist() == sorted(members)
    assert known.held_out.tolist() == split.held_out_owners.tolist()
    rule = split_store(store, config.seed, 0.4, 0.0).held_out_examples.tolist()
    expected: dict[int, set[int]] = {}
    for example in rule:
        writer, *others = owners[example]
        for owner in (writer, *(other for other in others if other >= store.num_users)):
            if owner in members or owner in set(split.held_out_owners.tolist()):
                expected.setdefault(owner, set()).add(example)
    found = {
        user: known.samples[known.offsets[place] : known.offsets[place + 1]].tolist()
        for place, user in enumerate(known.users.tolist())
    }
    assert {user: set(texts) for user, texts in found.items()} == expected
    assert all(len(set(texts)) == len(texts) for texts in found.values())
    assert not np.isin(known.samples, split.train_examples).any()
    listeners = known.users >= store.num_users
    assert known.member[listeners].any()
    assert not known.member[listeners].all()


def test_listeners_are_told_apart_where_nothing_protects_them(report: AttackReport) -> None:
    users, listeners = report.groups
    assert (users.name, listeners.name) == ("users", "listeners")
    assert listeners.users_in > 20
    assert listeners.users_out > 8
    assert len(report.checkpoints) == 3
    assert listeners.measured[0].auroc > 0.9
    assert users.measured[0].auroc < 0.9  # they all write alike
    assert report.auroc == users.measured[0].auroc


def test_listeners_are_on_the_page_and_in_the_picture(report: AttackReport) -> None:
    page = render_attack(report)
    assert "Owners without own texts (listeners)" in page
    assert "Planted" not in page
    names = [series.name for series in attack_chart(report).rows[0][0].series]
    assert names == ["mean of users", "mean of listeners", "guessing"]


def test_a_text_is_scored_once_however_many_have_it(
    mail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(config_of(mail), tmp_path / "run").path
    scored: list[int] = []

    def counting(model: Any, parameters: Any, store: Any, examples: Any) -> Any:  # noqa: ANN401
        scored.extend(examples.tolist())
        return score_examples(model, parameters, store, examples)

    monkeypatch.setattr(score_cache, "score_examples", counting)
    attack_run(folder, samples=[1])
    assert len(scored) == 2 * len(set(scored))  # before and after


def test_a_guarantee_under_a_fixed_graph_bounds_neither_group(mail: Path, tmp_path: Path) -> None:
    """It says what a text may tell of its owners, not whether it is there."""
    config = config_of(mail, **ELS, clip={"kind": "flat", "l2_clip_norm": 0.5})
    report = attack_run(run(config, tmp_path / "run").path, samples=[1])
    assert [group.name for group in report.groups] == ["users", "listeners"]
    assert report.privacy.relation.startswith("fixed-graph")
    assert report.bound.auroc is None
    assert (
        "the content of all texts of an owner with zeros, not with the owner's absence"
        in report.bound.reason
    )


def test_one_listener_is_no_reason_not_to_attack_users(mail: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in mail.read_text(encoding="utf-8").splitlines()]
    for number, row in enumerate(rows):
        row["to"] = ["listener"] if number % 30 == 0 else []
    path = tmp_path / "mail.jsonl"
    write_rows(path, rows)
    report = attack_run(run(config_of(path), tmp_path / "run").path, samples=[1])
    assert [group.name for group in report.groups] == ["users"]
