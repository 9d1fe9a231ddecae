"""Runs with private scores: what is charged, where they stand, what was asked and what pays."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fedsim.accounting.accountants import epsilon_of_composition
from fedsim.accounting.events import RoundCost
from fedsim.config import Config, TrainingConfig
from fedsim.errors import BudgetSpentError, ConfigError
from fedsim.evaluation.private_scores import private_scores
from fedsim.materials import Materials, load_materials
from fedsim.report.schema import RoundMetrics, load_metrics, load_report
from fedsim.runner.finished import Run
from fedsim.runner.folder import RunFolder
from fedsim.runner.launch import run
from fedsim.runner.shared_ledger import read_shared
from fedsim.sampling import PoissonSampling
from fedsim.strategy import build_plan
from fedsim.trackers.tracking import scalars
from tests.helpers.commands import fedsim_ok
from tests.helpers.light import light_config

SCORES = {"noise_multiplier": 4.0, "loss_bound": 6.0}
PROMISE: dict[str, Any] = {
    "epsilon": 6.0,
    "noise_multiplier": None,
    "delta": 1e-3,
    "declared_num_users": 20,
}


def scored(speeches: Path, every: int | None = None, **sections: dict[str, Any]) -> Config:
    scores = SCORES if every is None else {**SCORES, "every": every}
    return light_config(
        speeches,
        **{
            "data": {"held_out_examples": 0.4},
            "privacy": PROMISE,
            "training": {"private_evaluation": scores},
            **sections,
        },
    )


def score_cost(noise: float = 4.0) -> RoundCost:
    return RoundCost(PoissonSampling(1.0), noise)


@pytest.fixture(scope="module")
def finished(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(scored(speeches, every=2), tmp_path_factory.mktemp("scored") / "run").path


def test_rounds_and_scores_together_keep_the_promise(finished: Path) -> None:
    ledger = RunFolder(finished).read_ledger()
    (rounds, four), (scores, two) = sorted(ledger.costs, key=lambda each: -each[1])
    assert (four, two, scores) == (4, 2, score_cost())
    report = load_report(finished).privacy
    both = epsilon_of_composition([(rounds, 4), (scores, 2)], 1e-3)
    assert report.epsilon == pytest.approx(both, rel=1e-9)
    assert 5.9 < both <= 6.0
    assert "and 2 sums over all users with noise multiplier 4" in report.statement
    fedsim_ok("account", "verify", finished / "model")


def test_they_stand_in_metrics_report_card_and_trackers_as_covered(finished: Path) -> None:
    lines = load_metrics(finished)
    assert [line.round for line in lines if line.private_scores] == [2, 4]
    assert "and 2 sums over all users with noise multiplier 4" in str(lines[-1].epsilon_terms)
    scores = load_report(finished).private_scores
    assert scores is not None and scores == lines[-1].private_scores
    assert 0.0 <= scores.loss <= 6.0
    tags = {name for name, _ in scalars(lines[-1], "terms")}
    assert "private_scores/loss" in tags
    assert "not covered by ε/held_out/loss" in tags
    card = (finished / "model" / "README.md").read_text(encoding="utf-8")
    assert f"Held-out loss {scores.loss:.3f}" in card
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert "Private scores, counted by the ε above" in page
    assert "<dd>4, and 2 private scores</dd>" in page


def test_what_was_made_again_is_said_where_the_budget_ends_the_run(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds and a score before it was cut off, under other noise than those that count."""
    config = scored(
        speeches, every=2, strategy={"rounds": 6}, privacy={**PROMISE, "noise": "secure"}
    )
    path = tmp_path / "run"

    def cut_off(line: RoundMetrics, materials: Materials) -> None:
        if line.round == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fedsim.runner.session.check_held_out", cut_off)
        patch.setattr("fedsim.runner.session.save_checkpoint", lambda *_, **__: path)
        run(config.model_copy(update={"training": every_round(config)}), path)
    before = RunFolder(path).read_ledger().num_releases
    assert before == 4
    with pytest.raises(BudgetSpentError, match="does not pay for another round"):
        run(config.model_copy(update={"training": every_round(config)}), path, resume=True)
    report = load_report(path)
    assert report.cost.rounds < 6
    (said,) = [text for text in report.privacy.assumptions if "interrupted and resumed" in text]
    releases = report.privacy.rounds + report.privacy.scores
    assert f"4 of the {releases} releases were repeated" in said


def every_round(config: Config) -> TrainingConfig:
    return config.training.model_copy(update={"evaluate_every": 1})


def test_what_was_asked_is_listed_with_what_pays_for_it(finished: Path, speeches: Path) -> None:
    rows = {query.question: query for query in load_report(finished).privacy.queries}
    sums, scores = list(rows.values())[:2]
    assert (sums.times, sums.covered) == (4, True)
    assert (scores.times, scores.paid_by) == (2, "simulated: noise multiplier 4")
    free = {question: query for question, query in rows.items() if not query.covered}
    assert all(query.paid_by == "not covered by ε" for query in free.values())
    assert free["held-out loss, perplexity and accuracy"].times == 3  # rounds 0, 2 and 4
    assert not any("the number of users, for rates" in question for question in rows)  # declared
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert all(question in html.unescape(page) for question in rows)


def test_under_a_hypothetical_epsilon_they_are_said_so(speeches: Path, tmp_path: Path) -> None:
    privacy = {**PROMISE, "declared_num_users": None}
    strategy = {"sampling": {"kind": "shuffled"}}
    found = run(scored(speeches, privacy=privacy, strategy=strategy), tmp_path / "run")
    page = (found.path / "report.html").read_text(encoding="utf-8")
    assert "Private scores, counted by the ε above" in page
    assert "The hypothetical ε above counts them." in card_of(found)
    assert not any(query.covered for query in found.report.privacy.queries)
    assert any(
        "would cover only the model and its" in one for one in found.report.privacy.assumptions
    )
    lines = load_metrics(found.path)
    tags = {name for name, _ in scalars(lines[-1], lines[-1].epsilon_terms or "")}
    assert "not covered by ε/private_scores/loss" in tags
    assert "not covered by ε/release_over_noise" in tags
    assert not any(tag.startswith("private_scores") for tag in tags)


def card_of(found: Run) -> str:
    return (found.path / "model" / "README.md").read_text(encoding="utf-8")


def test_a_score_that_is_done_again_is_charged_once_where_it_repeats(
    speeches: Path, tmp_path: Path, finished: Path
) -> None:
    again = RunFolder(run(scored(speeches, every=2), tmp_path / "again").path)
    assert again.read_ledger() == RunFolder(finished).read_ledger()  # seeded: the same draws
    last = again.checkpoints / "round-000004"
    for path in again.checkpoints.iterdir():
        if path.name.startswith(last.name):
            path.unlink()
    for name in ("report.json", "report.html"):
        (again.path / name).unlink()
    before = again.metrics.read_text()
    run(scored(speeches, every=2), again.path, resume=True)
    assert again.metrics.read_text() == before
    assert again.read_ledger() == RunFolder(finished).read_ledger()


def test_a_shared_ledger_pays_for_rounds_and_scores(speeches: Path, tmp_path: Path) -> None:
    shared = {"ledger": str(tmp_path / "shared.json"), "epsilon": 12.0, "delta": 1e-3}
    run(
        scored(speeches, privacy={**PROMISE, "noise": "secure", "shared": shared}), tmp_path / "one"
    )
    held = read_shared(tmp_path / "shared.json")
    assert dict(held.ledger.costs)[score_cost()] == 1


def test_a_score_has_another_key_than_the_rounds(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Mock(wraps=private_scores)
    monkeypatch.setattr("fedsim.runner.session.private_scores", noted)
    config = scored(speeches, every=2)
    run(config, tmp_path / "run")
    keys = [call.kwargs["key"] for call in noted.call_args_list]
    materials = load_materials(config.seed, config.data, config.model, "cpu")
    draws, rounds = build_plan(config, materials).draws, range(config.strategy.rounds + 1)
    assert len(set(keys)) == len(keys) > 1
    assert not {draws.noise(round) for round in rounds} & set(keys)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"data": {"held_out_examples": 0.0}}, "there is no text to score"),
        ({"strategy": {"name": "non-private", "clip": None}}, "has no private scores"),
        ({"privacy": {"noise_multiplier": 0.0, "delta": 1e-3}}, "have no ε that could cover"),
        (
            {"privacy": {"noise_multiplier": 1.0, "delta": 1e-27}},
            r"privacy\.delta = 1e-27: the pld",
        ),
        ({"privacy": {**PROMISE, "epsilon": 0.1}}, "already cost .*; give the scores more noise"),
        (
            {
                "strategy": {"sampling": {"kind": "fixed-size"}},
                "privacy": {**PROMISE, "declared_num_users": None},
            },
            "training.private_evaluation beside the rounds",
        ),
    ],
    ids=[
        "nothing held out",
        "no strategy with noise",
        "no noise",
        "no finite ε",
        "too dear",
        "sampler",
    ],
)
def test_what_is_refused(
    speeches: Path, tmp_path: Path, sections: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        run(scored(speeches, **sections), tmp_path / "run")
    assert not (tmp_path / "run").exists()
