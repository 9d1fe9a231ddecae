"""`fedsim attack` as a user types it: what it prints and leaves behind, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import tomli_w
from PIL import Image

from fedsim.accounting.events import RoundCost
from fedsim.accounting.trade_off import TradeOff
from fedsim.attacks.charts import attack_chart
from fedsim.attacks.folder import render_attack
from fedsim.attacks.user_inference import attack_run, bound_of
from fedsim.cli.attack import _show
from fedsim.evaluation import scoring
from fedsim.language_model import LanguageModel
from fedsim.report.attack_report import AttackReport, Bound
from fedsim.report.attack_table import attack_table
from fedsim.report.drawing import FORMS
from fedsim.report.schema import Privacy, TradeOffBound
from fedsim.runner.detailed_evaluation import evaluate_run
from fedsim.runner.launch import run
from fedsim.sampling import PoissonSampling
from tests.conftest import Patch, small_config
from tests.helpers.commands import fedsim, fedsim_json, fedsim_ok
from tests.unit.report.report_samples import privacy as of_a_run


def sample_privacy() -> Privacy:
    curve = TradeOff.of([(RoundCost(PoissonSampling(0.0898), 0.84), 100)], delta=1e-5)
    assert curve is not None
    return of_a_run(trade_off=TradeOffBound(**curve.to_json()).model_dump())


@pytest.fixture(scope="module")
def found(attacked: Path) -> dict[str, Any]:
    return fedsim_json("attack", attacked, "--checkpoints")


def test_what_is_printed_is_what_is_left_behind(attacked: Path, found: dict[str, Any]) -> None:
    written = (attacked / "attack" / "attack.json").read_text(encoding="utf-8")
    assert json.loads(written) == found
    report = AttackReport.model_validate_json(written)
    assert (report.users_in, report.users_out) == (13, 7)
    assert report.samples_per_user == 2
    assert set(report.tpr_at_fpr) == {"0.001", "0.005", "0.01", "0.05", "0.1"}
    assert report.tpr_at_fpr["0.1"] is None  # of 7 held-out users no tenth can be let pass
    low, high = report.auroc_interval
    assert low <= report.auroc <= high


def test_who_was_trained_on_can_be_told_and_a_canary_better(found: dict[str, Any]) -> None:
    users, canaries = found["groups"]
    assert (users["name"], canaries["name"]) == ("users", "canaries")
    assert (canaries["users_in"], canaries["users_out"]) == (12, 8)
    best = [group["measured"][0]["auroc"] for group in (users, canaries)]
    assert 0.5 < best[0] < best[1]
    assert found["final"]["gap"] == pytest.approx(
        found["final"]["loss_out"] - found["final"]["loss_in"]
    )


@pytest.mark.parametrize("noise", ["seeded", "secure"])
@pytest.mark.parametrize("trained", ["starting", "reference"])
def test_what_another_training_kept_is_not_bounded(
    attacked: Path, letters: Path, tmp_path: Path, noise: Literal["seeded", "secure"], trained: str
) -> None:
    """One seed holds out the same users of both runs; secret draws are independent."""
    before = str(shutil.copytree(attacked / "model", tmp_path / "before"))
    of_start = {"name_or_path": before, "pretraining_steps": None}
    config = small_config(
        letters,
        data={"held_out_users": 0.5, "held_out_examples": 0.4, "sequence_length": 16},
        model=of_start if trained == "starting" else {},
        strategy={"rounds": 1},
        privacy={"noise": noise},
    )
    path = run(config.model_copy(update={"seed": 3}), tmp_path / "run").path
    (tmp_path / "before" / "privacy.json").unlink()  # the run's own report knows of it
    options = ("--reference", before) if trained == "reference" else ()
    bound = fedsim_json("attack", path, "--samples", "1", *options)["bound"]
    assert (bound["auroc"] is None) is (noise == "seeded")
    assert (f"The {trained} model was trained before" in bound["reason"]) is (noise == "seeded")


def test_the_last_checkpoint_is_the_final_model(found: dict[str, Any]) -> None:
    assert [state["round"] for state in found["checkpoints"]] == [2, 4, 6]
    last, final = found["checkpoints"][-1], found["final"]
    assert last["auroc"] == final["auroc"] == found["auroc"]
    assert last["loss_in"] == pytest.approx(final["loss_in"], rel=1e-5)
    assert -1.0 <= found["rank_correlation"] <= 1.0


def test_a_model_against_itself_is_guessing(attacked: Path, tmp_path: Path) -> None:
    options = ("--reference", attacked / "model", "--samples", "1", "--out", tmp_path)
    found = fedsim_json("attack", attacked, *options)
    assert found["auroc"] == 0.5
    assert found["auroc_interval"] == [0.5, 0.5]
    assert {path.name for path in tmp_path.iterdir()} == {
        "attack.json",
        "attack.html",
        *(f"attack.{form}" for form in FORMS),
    }


def test_attack_and_evaluation_compute_where_the_run_did(
    attacked: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Of a processor there is one, but it has two names."""
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    folder = shutil.copytree(attacked, tmp_path / "run", ignore=shutil.ignore_patterns("attack"))
    monkeypatch.setattr("fedsim.materials.default_device", lambda share: f"cpu:{share:g}")
    score, devices = scoring.score_padded, []

    def noted(model: LanguageModel, *given: Any) -> Any:  # noqa: ANN401
        devices.append(str(model.device))
        return score(model, *given)

    monkeypatch.setattr(scoring, "score_padded", noted)
    for command in (partial(attack_run, checkpoints=True), evaluate_run):
        devices.clear()
        command(folder)
        assert len(devices) > 1 and set(devices) == {"cpu:0"}


def test_the_table_names_the_promise_and_the_rounds(attacked: Path) -> None:
    printed = fedsim_ok("attack", attacked, "--checkpoints").stdout
    assert "Guarantee: no privacy guarantee (sampler: " in printed
    assert "attack.html" in printed
    assert re.findall(r"After round (\d+): AUROC \d\.\d{3}\.", printed) == ["2", "4", "6"]


def test_the_page_and_the_picture(attacked: Path, found: dict[str, Any]) -> None:
    page = (attacked / "attack" / "attack.html").read_text(encoding="utf-8")
    assert f"{found['auroc']:.3f}" in page
    assert "src=" not in page and "<script" not in page
    assert "No privacy guarantee" in page
    with Image.open(attacked / "attack" / "attack.png") as picture:
        assert picture.width == 1600


def test_a_comparison_shows_the_attacks_on_its_runs(
    attacked: Path, found: dict[str, Any], tmp_path: Path
) -> None:
    shown = fedsim_ok("compare", attacked, "--out", tmp_path)
    page = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    table = (tmp_path / "comparison.md").read_text(encoding="utf-8")
    for name, group in zip(("users", "planted users"), found["groups"], strict=True):
        best = group["measured"][0]
        low, high = best["auroc_interval"]
        cells = ["2", f"{group['users_in']} + {group['users_out']}", f"{best['auroc']:.3f}"]
        assert f"| {' | '.join([name, *cells, f'{low:.3f} to {high:.3f}', '–'])} |" in table
        assert f"{name} · {cells[-1]}" in page
        assert cells[-1] in shown.stdout
    assert 'id="attacks"' in page and found["bound"]["reason"] in table
    assert r"\toprule" in (tmp_path / "comparison-attacks.tex").read_text(encoding="utf-8")


def test_what_a_guarantee_allows_is_rounded_up(
    found: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    bound = Bound(auroc=0.69512, reason="by chance")
    changed = {"privacy": sample_privacy(), "bound": bound}
    report = AttackReport.model_validate(found | changed)
    assert "allows an AUROC of up to 0.696." in attack_chart(report).notes[0]
    assert "<strong>0.696</strong>" in render_attack(report)
    table = attack_table([("private", report)])
    assert table is not None and [row[-1] for row in table.rows] == ["0.696", "0.696"]
    _show(report)
    assert "allows an AUROC of up to 0.696." in " ".join(capsys.readouterr().out.split())


def test_a_page_with_a_guarantee_has_its_terms_and_its_bound(found: dict[str, Any]) -> None:
    privacy = sample_privacy()
    report = AttackReport.model_validate(found | {"privacy": privacy, "bound": bound_of(privacy)})
    page = render_attack(report)
    assert report.bound.auroc is not None
    for words in (f"{report.bound.auroc:.3f}", privacy.relation, "δ = ", "the guarantee's bound"):
        assert words in page.replace("&#39;", "'").replace("&#x27;", "'")
    ((linear, log),) = attack_chart(report).rows
    names = ["mean of users", "mean of canaries", "guessing", "the guarantee's bound"]
    for panel in (linear, log):
        assert [series.name for series in panel.series] == names
        curve = report.groups[0].curves[0]
        skip = curve.false_positive_rates.count(0.0) if panel is log else 0
        rates = curve.false_positive_rates[skip:], curve.true_positive_rates[skip:]
        assert [point.at for point in panel.series[0].points] == [*rates[0]]
        assert [point.value for point in panel.series[0].points] == [*rates[1]]
    assert linear.series[0].points[0].at == 0.0
    assert log.series[0].points[0].at == pytest.approx(1 / report.groups[0].users_out)
    assert (linear.x.log, log.x.log) == (False, True)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"epsilon": None, "trade_off": None}, "no guarantee"),
        ({"hypothetical": True}, "hypothetical"),
        ({"relation": "zero-out-one user"}, "zeros"),
        ({"relation": "replace-one user"}, "another user's"),
    ],
)
def test_what_is_no_guarantee_of_this_bounds_nothing(changed: dict[str, Any], reason: str) -> None:
    privacy: Privacy = sample_privacy().model_copy(update=changed)
    bound = bound_of(privacy)
    assert bound.auroc is None
    assert reason in bound.reason


def other_vocabulary(attacked: Path, folder: Path) -> Path:
    """Return the run's model with a tokenizer that reads texts differently."""
    shutil.copytree(attacked / "model", folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:-1]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--samples", "50"), "--samples 50: 0 trained and 0 held-out users"),
        (("--samples", "0"), "--samples"),
        (("--reference", "./nowhere"), "--reference './nowhere'"),
        (("--reference", "OTHER"), "has another vocabulary than the run's"),
    ],
)
def test_wrong_input_is_one_message_and_status_2(
    attacked: Path, tmp_path: Path, options: tuple[str, ...], complaint: str
) -> None:
    other = other_vocabulary(attacked, tmp_path / "other") if "OTHER" in options else ""
    given = [str(other) if option == "OTHER" else option for option in options]
    done = fedsim("attack", attacked, *given, "--out", tmp_path / "out")
    assert complaint in done.complaint
    assert not (tmp_path / "out").exists()


def test_a_run_without_held_out_users_has_nobody_to_tell_from(
    attacked: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(attacked, tmp_path / "run")
    config = tomllib.loads((other / "config.toml").read_text(encoding="utf-8"))
    config["data"]["held_out_users"] = 0.0
    del config["data"]["canaries"]
    (other / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
    complaint = fedsim("attack", other).complaint
    assert "data.held_out_users = 0.0: the run has no held-out users" in complaint
