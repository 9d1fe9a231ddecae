"""`fedsim compare` with budgets, tuning and seeds, as a user types it."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedsim.report.drawing import FORMS
from fedsim.report.grid_result import GridResult, line_labels
from fedsim.report.schema import load_report
from fedsim.sweep.cells import expand
from fedsim.sweep.jobs import Job, Outcomes, attempt
from fedsim.sweep.measure import measure
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.light import write_config


@pytest.fixture(scope="module")
def configs(speeches: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measured")
    quick = {"training": {"evaluate_every": 2, "checkpoint_every": 2}}
    els = {"name": "els", "cohort_size": None, "batch_size": 6}
    for name, keys in (("uls", {}), ("els", els)):
        write_config(path / f"{name}.toml", speeches, strategy={"rounds": 2, **keys}, **quick)
    return path


ARGUMENTS = ("--budget", "6", "12", "--seeds", "2", "--tune", "server.learning_rate=0.001,1e30")


@pytest.fixture(scope="module")
def measured(configs: Path) -> Path:
    """2 configs x 2 budgets, the learning rate tuned, 2 seeds."""
    out = configs / "out"
    sources = (configs / "uls.toml", configs / "els.toml")
    fedsim_ok("compare", *sources, *ARGUMENTS, "--out", out)
    return out


def read(out: Path) -> GridResult:
    return GridResult.model_validate_json((out / "comparison.json").read_text(encoding="utf-8"))


def test_every_line_has_its_seeds_and_the_better_setting(measured: Path) -> None:
    lines = read(measured).lines
    assert [line.name for line in lines] == [
        f"{name},budget={budget}" for name in ("uls", "els") for budget in (6, 12)
    ]
    assert all(line.chosen == {"learning_rate": "0.001"} for line in lines)
    assert all(len(line.losses) == 2 and line.loss is not None for line in lines)
    for line in lines:
        reports = [load_report(measured / f"{line.name},seed={seed}") for seed in (0, 1)]
        assert tuple(report.utility.final.loss for report in reports) == line.losses


def test_budgets_are_equal_in_expectation(measured: Path) -> None:
    """On the split of the first seed; the second one's is another by a few examples."""
    for line in read(measured).lines:
        report = load_report(measured / f"{line.name},seed=0")
        assert report.cost.expected_gradients is not None
        asked = float(line.settings["budget"])
        assert report.cost.expected_gradients / 2 == pytest.approx(asked, rel=1e-6)


def test_the_cost_of_tuning_is_stated(measured: Path) -> None:
    tuning = read(measured).tuning
    assert tuning is not None and tuning.runs == 8
    ran = [load_report(path.parent) for path in (measured / "tuning").glob("*/report.json")]
    assert tuning.gradients == sum(report.cost.gradients for report in ran)
    assert "ε does not cover the choice" in (measured / "comparison.md").read_text(encoding="utf-8")
    with (measured / "comparison.csv").open(encoding="utf-8") as file:
        assert [row["chosen.learning_rate"] for row in csv.DictReader(file)] == ["0.001"] * 4


def test_the_folder_has_a_picture_and_a_page_of_every_line(measured: Path) -> None:
    names = {path.name for path in measured.glob("comparison.*")}
    assert names == {f"comparison.{kind}" for kind in ("csv", "html", "json", "md", "tex", *FORMS)}
    page = (measured / "comparison.html").read_text(encoding="utf-8")
    assert all(f">{label}<" in page for label in line_labels(read(measured).lines).values())
    for line in read(measured).lines:
        assert line.loss is not None
        assert f">{line.loss.mean:.4f} ± " in page


def test_arms_of_equal_seeds_are_paired(measured: Path) -> None:
    """The difference of every two lines with one setting apart, over the seeds' own losses."""
    result = read(measured)
    pairs = {(pair.first, pair.second): pair for pair in result.differences}
    budgets = ("budget=6", "budget=12")
    assert list(pairs) == [
        *((f"uls,{budget}", f"els,{budget}") for budget in budgets),
        *((f"{name},{budgets[0]}", f"{name},{budgets[1]}") for name in ("uls", "els")),
    ]
    for (first, second), pair in pairs.items():
        gaps = [
            load_report(measured / f"{first},seed={seed}").utility.final.loss
            - load_report(measured / f"{second},seed={seed}").utility.final.loss
            for seed in (0, 1)
        ]
        assert pair.loss.mean == pytest.approx(sum(gaps) / 2)
        # By hand: t at 97.5 % with one degree of freedom, times half the distance of two values.
        assert pair.loss.high - pair.loss.mean == pytest.approx(
            12.7062 * abs(gaps[0] - gaps[1]) / 2
        )
    shown = (measured / "comparison.md").read_text(encoding="utf-8")
    table = (measured / "comparison-differences.tex").read_text(encoding="utf-8")
    assert "| uls vs els (budget = 6) | " in shown
    assert "uls vs els (budget = 6) & " in table


def test_non_private_is_trained_once_and_has_no_epsilon_in_its_label(
    configs: Path, tmp_path: Path
) -> None:
    grid = ("--vary", "strategy.name=uls,non-private", "--vary", "privacy.noise_multiplier=1,2")
    done = fedsim_ok("compare", configs / "uls.toml", *grid, "--seeds", "1", "--out", tmp_path)
    names = [f"uls,name=uls,noise_multiplier={sigma}" for sigma in (1, 2)]
    assert [line.name for line in read(tmp_path).lines] == [*names, "uls,name=non-private"]
    assert len([*tmp_path.glob("*/report.json")]) == 3
    shown = " ".join(done.stdout.split())
    assert "uls, noise_multiplier = 1 vs non-private" in shown
    assert "One seed gives no interval" in shown
    caption = (tmp_path / "comparison-caption.tex").read_text(encoding="utf-8")
    simulated = r"uls: simulated $\varepsilon$ at $\delta$ = "
    for terms in (simulated, "accountant: pld", "non-private: no privacy guarantee"):
        assert terms in caption


def test_what_was_cut_off_is_taken_up_and_nothing_else(configs: Path, measured: Path) -> None:
    before = (measured / "comparison.json").read_bytes()
    kept = measured / "uls,budget=6,seed=0" / "report.json"
    written = kept.stat().st_mtime_ns
    lost = measured / "els,budget=12,seed=1"
    loss = load_report(lost).utility.final.loss
    shutil.rmtree(lost)
    sources = (configs / "uls.toml", configs / "els.toml")
    fedsim_ok("compare", *sources, *ARGUMENTS, "--out", measured)
    assert kept.stat().st_mtime_ns == written
    assert load_report(lost).utility.final.loss == loss
    now = json.loads((measured / "comparison.json").read_bytes())
    for line in (*now["lines"], *(then := json.loads(before))["lines"]):
        line["seconds"] = 0.0
    assert now == then


@pytest.mark.parametrize(
    ("varied", "noise", "said"),
    [
        ("privacy.noise_multiplier=1,2", "secure", "The runs were scored on different held-out"),
        ("data.held_out_examples=0.2,0.4", "seeded", "The runs were scored on different held-out"),
        ("privacy.noise_multiplier=1,2", "seeded", ""),
    ],
)
def test_lines_scored_on_different_text_are_said(
    configs: Path, tmp_path: Path, varied: str, noise: str, said: str
) -> None:
    arguments = ("--vary", varied, "--set", f"privacy.noise={noise}", "--seeds", "1")
    done = fedsim_ok("compare", configs / "uls.toml", *arguments, "--out", tmp_path)
    notes = read(tmp_path).notes
    together = " ".join(notes)
    assert (said in together) if said else ("held-out text" not in together)
    for shown in (done.stdout, (tmp_path / "comparison.md").read_text(encoding="utf-8")):
        assert said in " ".join(shown.split())
        assert ("different held-out text" in " ".join(shown.split())) is bool(said)


def test_a_run_that_its_strategy_halted_is_said(configs: Path, tmp_path: Path) -> None:
    def halting(jobs: Sequence[Job]) -> Outcomes:
        for job in jobs:
            yield replace(attempt(job), ending="halted", reason="round 1: not concentrated")

    cells = expand(configs / "uls.toml", [], [])
    (line,) = measure(cells, tmp_path / "one", runner=halting).lines
    assert line.stopped == ("uls,seed=0: round 1: not concentrated",)
    assert line.num_halted == 1


def test_a_config_that_no_run_can_begin_is_wrong_input(configs: Path, tmp_path: Path) -> None:
    arguments = ("--seeds", "2", "--set", "strategy.cohort_size=500", "--out", tmp_path)
    done = fedsim("compare", configs / "uls.toml", *arguments)
    assert done.returncode == 2
    assert "cohort_size = 500" in done.stderr
    assert not list(tmp_path.glob("comparison.*"))


@pytest.mark.parametrize(
    "key", ["strategy.local.epochs=1,2", "strategy.group_size=2,3", "strategy.rounds=1,2"]
)
def test_what_a_budget_fixes_is_not_tuned(configs: Path, tmp_path: Path, key: str) -> None:
    arguments = ("--budget", "6", "--tune", key, "--out", tmp_path)
    assert (
        "or --budget computed sizes from it"
        in fedsim("compare", configs / "uls.toml", *arguments).complaint
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "0"), "--budget = 0.0: give a finite number"),
        (("--budget", "100000"), "give at most that"),
        (("--tune", "seed=1,2"), "--tune seed: a lower loss"),
        (("--vary", "seed=1,2", "--seeds", "2"), "--vary seed: give --seeds N"),
        (("--tune", "strategy.rounds=1,x"), "strategy.rounds"),
        (("--tune", "privacy.noise_multiplier=1,2"), "--tune privacy.noise_multiplier: a lower"),
        (
            ("--budget", "6", "--tune", "strategy.group_size=1,2"),
            "--vary or --budget already sets it",
        ),
        (
            ("--vary", "strategy.clip.normalise=true", "--tune", "strategy.clip={}"),
            "already sets it",
        ),
        (
            ("--vary", "strategy.rounds=1,2", "--tune", "strategy.rounds=1,2"),
            "--tune strategy.rounds: --vary or --budget",
        ),
        (
            ("--tune", "server.learning_rate=1,2", "--set", "data.held_out_examples=0.0"),
            "there is no text to compare the values on",
        ),
    ],
)
def test_nonsense_is_one_sentence(configs: Path, arguments: tuple[str, ...], message: str) -> None:
    out = configs / "wrong"
    done = fedsim("compare", configs / "uls.toml", *arguments, "--out", out)
    assert message in done.complaint
    assert not out.exists()
