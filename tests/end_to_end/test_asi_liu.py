"""The strategy asi-liu as a user types it: trains, halts with status 1, or says what is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedsim.accounting.ledger import Ledger
from fedsim.report.schema import load_report
from fedsim.runner.folder import RunFolder
from fedsim.runner.shared_ledger import read_shared
from tests.helpers.commands import Done, fedsim
from tests.helpers.light import write_config

STRATEGY: dict[str, Any] = {
    "name": "asi-liu",
    "cohort_size": None,
    "concentration_radius": 1.0,  # of gradients clipped to 0.5: all are within it
    "rounds": 2,
}
PRIVACY = {"noise_multiplier": None, "epsilon": 200.0}  # 24 users are few for the test


def run(speeches: Path, out: Path, *options: str, resume: bool = False) -> Done:
    path = out.with_suffix(".toml")
    config = write_config(path, speeches, strategy=STRATEGY, privacy=PRIVACY)
    sets = [part for option in options for part in ("--set", option)]
    return fedsim("run", config, "--out", out, *sets, *(["--resume"] if resume else []))


def test_concentrated_users_train(speeches: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run(speeches, out)
    assert done.returncode == 0, done.stderr
    assert "under the replace-one user relation" in done.stdout
    assert "all 24 users, tested for concentration" in done.stdout
    assert "by the above-threshold accountant" in done.stdout
    privacy = load_report(out).privacy
    assert privacy.epsilon is not None and 150 < privacy.epsilon <= 200
    assert privacy.noise_multiplier is not None
    assert privacy.noise_stddev == pytest.approx(privacy.noise_multiplier * 24 * 1.0 / 24)
    assert privacy.estimator["kind"] == "filtered-mean"
    assert any("AboveThreshold" in sentence for sentence in privacy.assumptions)


def test_a_secure_run_goes_on_to_the_same_bits(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill in its second round: the secret of its test and noise is kept."""
    monkeypatch.setenv("FEDSIM_CACHE", str(tmp_path / "cache"))
    options = ("privacy.noise='secure'", "training.keep_checkpoints=2")
    folder = RunFolder(tmp_path / "run")
    done = run(speeches, folder.path, *options)
    assert done.returncode == 0, done.stderr
    trained = (folder.model / "model.safetensors").read_bytes()
    folder.report.unlink()
    shutil.rmtree(folder.model)
    max(folder.checkpoints.iterdir()).unlink()
    done = run(speeches, folder.path, *options, resume=True)
    assert done.returncode == 0, done.stderr
    assert (folder.model / "model.safetensors").read_bytes() == trained
    (item,) = folder.read_ledger().items
    assert (item.num_rounds, item.release.split(":")[0]) == (2, "kept")


def test_a_shared_ledger_takes_a_run_as_one_entry(speeches: Path, tmp_path: Path) -> None:
    """A second run is refused before its first test, for all of its rounds."""
    file = tmp_path / "people.json"
    text = f"{{ledger='{file}',epsilon=350.0,delta=1e-3}}"
    shared = ("privacy.noise=secure", f"privacy.shared={text}")
    assert run(speeches, tmp_path / "first", *shared).returncode == 0
    (cost, rounds), *_ = read_shared(file).ledger.costs
    assert (cost.sampling.kind, cost.run_rounds, rounds) == ("concentrated", 2, 2)
    before = file.read_text(encoding="utf-8")
    other = run(speeches, tmp_path / "second", *shared, "seed=1")
    assert other.returncode == 3
    assert "round 0: this release would exceed the shared budget" in other.stderr
    assert file.read_text(encoding="utf-8") == before
    assert load_report(tmp_path / "second").cost.rounds == 0


def test_others_halt_the_run_which_is_charged_and_reported(speeches: Path, tmp_path: Path) -> None:
    out, apart = tmp_path / "run", "strategy.concentration_radius=1e-3"
    done = run(speeches, out, apart)
    assert done.returncode == 1
    assert "Halted: round 0: the users' gradients are not concentrated" in done.stderr
    report = load_report(out)
    assert report.cost.rounds == 0
    assert report.halted is not None
    assert report.halted.startswith("round 0: the users' gradients are not concentrated")
    assert report.utility.final.loss == report.utility.initial.loss  # nothing was released
    assert report.privacy.epsilon is not None
    assert report.privacy.epsilon > 100  # that it halted is not free
    ledger = (out / "ledger.json").read_text(encoding="utf-8")
    assert Ledger.from_json(json.loads(ledger)).num_releases == 2  # all that were planned
    again = run(speeches, out, apart, resume=True)
    assert again.returncode == 1  # the same noise, the same end
    assert (out / "ledger.json").read_text(encoding="utf-8") == ledger
    for name in ("sweep", "sweep again"):  # one that finds it there says the same
        compared = fedsim(
            "compare", out.with_suffix(".toml"), "--set", apart, "--out", tmp_path / "both"
        )
        assert compared.returncode == 1, name
        assert "the users' gradients are not concentrated" in compared.stderr


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("privacy.epsilon=8.0", "with 24 users the test of strategy 'asi-liu' may be wrong"),
        ("privacy.delta=1e-33", "it needs a larger epsilon or delta, or more users"),
        ("strategy.cohort_size=5", "strategy.cohort_size: only name = "),
        (
            "strategy.sampling.kind='fixed-size'",
            "sampling.kind = 'fixed-size': 'asi-liu' has its own sampling; remove it",
        ),
        ("privacy.relation='add-or-remove-one'", "needs a public number of users"),
        (
            "privacy.accountant='pld'",
            "has no PLD of 'concentrated' sampling; use 'above-threshold'",
        ),
        ("privacy.declared_num_users=25", "there are 24 users"),
        ("strategy.name='uls'", 'strategy.concentration_radius: only name = "asi-liu" has it'),
        ("strategy.concentration_radius=0", "strategy.concentration_radius = 0"),
    ],
)
def test_what_is_not_proved_is_refused_in_one_sentence(
    override: str, complaint: str, speeches: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    assert complaint in run(speeches, out, override).complaint
    assert not out.exists()


def test_gradients_that_do_not_fit_are_refused(
    speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsim.experiments.studies.chua_2024.asi_liu.asi_liu.MOST_BYTES", 1_000)
    complaint = run(speeches, tmp_path / "run").complaint
    assert "holds the gradients of all 24 users at once" in complaint
