"""`fedsim tune`: one price, one winner, and what it refuses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedsim.accounting.accountants import epsilon_of_composition
from fedsim.accounting.ledger import Ledger
from fedsim.config import load_config
from fedsim.errors import BudgetSpentError
from fedsim.report.schema import load_report
from fedsim.runner.detailed_evaluation import evaluate_run
from fedsim.runner.folder import RunFolder
from fedsim.runner.launch import run
from fedsim.runner.shared_ledger import read_shared
from fedsim.sweep.cells import Cell, expand, parse_variation
from fedsim.sweep.jobs import Job, Outcomes, attempt
from fedsim.sweep.search import RESULT, STATE, TRIALS, WINNER, run_search
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.light import write_config

RATES = "server.learning_rate=0.001,0.02,0.3"
POOLED = (  # at a given noise, so that both cost the same
    "--set",
    "strategy={rounds=4,batch_size=6,group_size=3,clip={l2_clip_norm=0.5}}",
    "--set",
    "privacy={noise_multiplier=3.0,delta=1e-3}",
)
SCORES = {"private_evaluation": {"noise_multiplier": 2.0, "loss_bound": 6.0}}


def write(path: Path, speeches: Path, **privacy: object) -> Path:
    promise = {"epsilon": 8.0, "delta": 1e-3, "noise": "seeded", "noise_multiplier": None}
    return write_config(
        path,
        speeches,
        data={"held_out_examples": 0.4},
        privacy={**promise, "declared_num_users": 20, **privacy},
        training=SCORES,
    )


def cells_of(path: Path, *overrides: str) -> list[Cell]:
    return expand(path, [parse_variation(RATES)], overrides)


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()


def contents(folder: Path) -> dict[Path, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "run.log")
    return {path: path.read_bytes() for path in found}


def draw(monkeypatch: pytest.MonkeyPatch, trials: int) -> None:
    """Let searches have so many trials, whatever their law says; the price is the law's."""
    monkeypatch.setattr("fedsim.accounting.search.Search.draw", lambda *_: trials)


def test_the_winner_is_the_best_score_and_all_that_stays(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(monkeypatch, 4)
    seen: dict[str, tuple[float, str]] = {}

    def watched(jobs: Sequence[Job]) -> Outcomes:
        for job in jobs:
            outcome = attempt(job)
            scores = load_report(job.out).private_scores
            assert scores is not None
            seen[job.name] = scores.loss, weights(job.out)
            yield outcome

    out = tmp_path / "search"
    winner = run_search(
        cells_of(write(tmp_path / "c.toml", speeches)), out, trials=6.0, runner=watched
    )
    assert len(seen) == 4  # of three candidates
    assert len({digest for _, digest in seen.values()}) == len(seen)  # each has its own noise
    assert weights(winner) == min(seen.values())[1]
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["ledger.json", STATE, RESULT, WINNER]
    )
    report = load_report(winner)
    ledger = Ledger.from_json(json.loads((out / "ledger.json").read_text()))
    assert ledger.num_releases == report.cost.rounds
    assert report.privacy.epsilon == pytest.approx(ledger.epsilon(1e-3), abs=1e-12)
    assert report.privacy.epsilon is not None and 7.9 < report.privacy.epsilon <= 8.0
    assert "search" in report.privacy.statement
    (cost, _), *_ = ledger.costs
    assert epsilon_of_composition(cost.trial, 1e-3) < report.privacy.epsilon
    fedsim_ok("account", "verify", winner / "model")
    result = json.loads((out / RESULT).read_text())
    assert report.private_scores is not None
    assert result["private_scores"] == report.private_scores.model_dump()
    assert result["chosen"]["learning_rate"] in ("0.001", "0.02", "0.3")
    assert "trials" not in result  # how many there were
    kept = contents(winner)
    run(load_config(winner / "config.toml"), winner, resume=True)
    assert contents(winner) == kept


def test_a_shared_ledger_takes_the_whole_search_as_one_entry(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(monkeypatch, 2)
    shared = {"ledger": str(tmp_path / "shared.json"), "epsilon": 20.0, "delta": 1e-3}
    config = write(tmp_path / "c.toml", speeches, noise="secure", shared=shared)
    winner = run_search(cells_of(config), tmp_path / "first", trials=3.0)
    ledger = read_shared(tmp_path / "shared.json").ledger
    assert [count for _, count in ledger.costs] == [load_report(winner).cost.rounds]
    again = run_search(cells_of(config), tmp_path / "first", trials=3.0, resume=True)
    assert again == winner
    assert read_shared(tmp_path / "shared.json").ledger == ledger
    small = write(
        tmp_path / "small.toml",
        speeches,
        noise="secure",
        shared={**shared, "ledger": str(tmp_path / "small.json"), "epsilon": 7.0},
    )
    refused = fedsim("tune", small, "--vary", RATES, "--out", tmp_path / "refused")
    assert refused.returncode == 3
    assert "would exceed the shared budget" in refused.stderr
    assert not (tmp_path / "refused" / TRIALS).exists()
    with pytest.raises(BudgetSpentError):  # nothing was half begun: it may be tried again
        run_search(cells_of(small), tmp_path / "refused", trials=8.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--vary", "server.learning_rate=0.1"), "there is only one candidate"),
        (("--vary", "strategy.rounds=3,4"), "all trials of a search need the same"),
        (
            ("--vary", "strategy.name=els,group-privacy", *POOLED),
            "has another privacy cost or accountant",
        ),
        (("--vary", "privacy.epsilon=1,2"), "trials need equal data and guarantees"),
        (("--vary", "data.sequence_length=8,16"), "trials need equal data and guarantees"),
        (("--vary", RATES, "--trials", "1"), "trials"),
        (("--vary", RATES, "--stopping", "poisson", "--set", "privacy.accountant=pld"), "rdp"),
        (("--vary", RATES, "--set", "data.held_out_examples=0"), "there is no text to score"),
        (("--vary", RATES, "--set", "strategy.name=non-private"), "its runs are not private"),
        (
            ("--vary", RATES, "--set", "privacy.epsilon=0.1"),
            "the releases beside them already cost 3.05; give the scores more noise, make fewer",
        ),
    ],
)
def test_what_a_search_refuses(
    speeches: Path, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    config = write(tmp_path / "c.toml", speeches)
    complaint = fedsim("tune", config, *options, "--out", tmp_path / "out").complaint
    assert said in complaint
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.json"))


def test_a_dry_run_says_what_it_would_cost(speeches: Path, tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", speeches)
    done = fedsim("tune", config, "--vary", RATES, "--dry-run", "--json", "--out", tmp_path / "x")
    found = json.loads(done.stdout)
    assert found["epsilon_of_a_trial_by_itself"] < found["epsilon"] <= 8.0
    options = ("--vary", RATES, "--stopping", "poisson", "--dry-run", "--json")
    left_out, named = (
        json.loads(fedsim("tune", config, *options, *more).stdout)
        for more in ((), ("--set", "privacy.accountant=rdp"))
    )
    assert left_out == named  # what a trial by itself would cost is under the same terms
    assert "3 candidates" in found["statement"]
    assert not (tmp_path / "x").exists()


def test_a_trial_is_no_run_by_itself(speeches: Path, tmp_path: Path) -> None:
    """A secure one would be another release than the one that the search paid for."""
    shared = {"ledger": str(tmp_path / "shared.json"), "epsilon": 20.0, "delta": 1e-3}
    config = write(tmp_path / "c.toml", speeches, noise="secure", shared=shared)
    winner = run_search(cells_of(config), tmp_path / "out", trials=2.0)
    assert RunFolder(winner).read_config().privacy.shared is not None
    again = fedsim("run", winner / "config.toml", "--out", tmp_path / "again").complaint
    assert "privacy.search.trial" in again
    assert not (tmp_path / "again").exists()
    assert "privacy.shared: an audit" in fedsim("audit", winner / "config.toml").complaint
    assert read_shared(tmp_path / "shared.json").ledger.num_releases == 1
    said = load_report(winner).privacy.assumptions
    assert any("All runs that share its ledger" in sentence for sentence in said)


def test_what_a_trial_writes_is_covered_once_it_has_won(speeches: Path, tmp_path: Path) -> None:
    """Before that, all of the trials can be looked at, of which the price pays for one."""
    before: list[str] = []

    def looked_at(jobs: Sequence[Job]) -> Outcomes:
        for job in jobs:
            outcome = attempt(job)
            before.append(evaluate_run(job.out)["note"])
            yield outcome

    config = write(tmp_path / "c.toml", speeches)
    winner = run_search(cells_of(config), tmp_path / "out", trials=2.0, runner=looked_at)
    assert all(note.endswith("nor are the samples") for note in before) and before
    assert evaluate_run(winner)["note"].endswith("except for the samples")


def test_one_secret_file_is_all_that_a_search_keeps(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    draw(monkeypatch, 2)
    config = write(tmp_path / "c.toml", speeches, noise="secure")
    out = tmp_path / "out"
    winner = run_search(cells_of(config), out, trials=6.0)
    (kept,) = (tmp_path / "cache" / "seeds").iterdir()
    assert kept.stem == json.loads((out / STATE).read_text())["id"]
    assert kept.stem == json.loads((winner / "run.json").read_text())["id"]


def test_trackers_see_the_winner_alone(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(monkeypatch, 2)
    config = write(tmp_path / "c.toml", speeches)
    seen: list[Path] = []

    def noted(jobs: Sequence[Job]) -> Outcomes:
        for job in jobs:
            assert job.config.training.trackers == ()
            yield attempt(job)
            seen.extend(job.out.glob("tensorboard/*"))

    tracked = 'training.trackers=["tensorboard"]'
    winner = run_search(cells_of(config, tracked), tmp_path / "out", trials=6.0, runner=noted)
    assert not seen
    assert list(winner.glob("tensorboard/events.out.tfevents.*"))


def test_a_hypothetical_promise_covers_no_score(speeches: Path, tmp_path: Path) -> None:
    config = write(tmp_path / "c.toml", speeches, declared_num_users=24)
    options = ("--trials", "2", "--vary", RATES, "--set", "strategy.sampling.kind=shuffled")
    done = fedsim_ok("tune", config, *options, "--out", tmp_path / "out")
    assert "Private scores, counted by the ε above: " in done.stdout
