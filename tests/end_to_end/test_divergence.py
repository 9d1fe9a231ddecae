"""A run whose numbers are no longer finite stops, says which round, and keeps what was finite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedsim.errors import DivergedError
from fedsim.materials import Materials
from fedsim.report.schema import RoundMetrics, load_metrics, load_report
from fedsim.report.wording import NOTHING
from fedsim.runner.checkpoint import checkpoints_in, load_checkpoint
from fedsim.runner.folder import RunFolder
from fedsim.runner.shared_ledger import read_shared
from fedsim.runner.training import NOT_PAID_FOR, check_held_out
from fedsim.tensors import all_finite
from tests.helpers.commands import fedsim, fedsim_ok
from tests.helpers.light import write_config

FAR: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 1e38}


def write(path: Path, speeches: Path, name: str, **sections: dict[str, Any]) -> Path:
    strategy = {"name": name, "rounds": 6} | sections.pop("strategy", {})
    training = {"evaluate_every": 4, "checkpoint_every": 1, "keep_checkpoints": 9}
    return write_config(path, speeches, strategy=strategy, training=training, **sections)


def test_a_held_out_loss_that_is_not_finite_ends_the_run(speeches: Path, tmp_path: Path) -> None:
    config, out = write(tmp_path / "far.toml", speeches, "non-private", server=FAR), tmp_path / "o"
    for resume in ((), ("--resume",)):
        done = fedsim("run", config, "--out", out, *resume)
        assert done.returncode == 1
        assert done.stdout == ""
        *lines, said = done.stderr.splitlines()
        assert said.startswith("Diverged: round 4: the held-out loss is nan (computed on private")
        warned = [line for line in lines if "NaN" in line]
        assert len(warned) == (0 if resume else 1)  # once, and not of each round
        all_of_them = (
            r"round [23]: (\d+) of \1 updates had a NaN or an infinity .*"
            r"not protected by the privacy guarantee\)"
        )
        assert all(re.fullmatch(all_of_them, line) for line in warned)
        report = load_report(out)
        assert report.diverged == said.removeprefix("Diverged: ")
        assert report.cost.rounds == load_metrics(out)[-1].round == 4
        assert RunFolder(out).read_ledger().num_releases == 6
    assert report.utility.final.tokens == report.utility.initial.tokens > 0
    assert "The run ended in round 4" in (out / "report.html").read_text(encoding="utf-8")
    assert not (out / "model").exists()
    log = (out / "run.log").read_text(encoding="utf-8")
    assert log.count(" ended by DivergedError\n") == 2
    assert [path.name[:12] for path in sorted((out / "checkpoints").iterdir())][
        -1
    ] == "round-000003"


@pytest.mark.parametrize("shares", [True, False])
def test_a_diverged_run_never_goes_on(
    shares: bool, speeches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under secure noise and a budget.

    A model of the round before would tell by its round what no noise covers.
    """
    privacy: dict[str, Any] = {"noise": "secure", "noise_multiplier": None, "epsilon": 2.0}
    ledger, out = tmp_path / "people.json", tmp_path / "o"
    if shares:  # the scores that did not come are charged there too
        privacy["shared"] = {"ledger": str(ledger), "epsilon": 20.0, "delta": 1e-2}
    config = write(tmp_path / "c.toml", speeches, "uls", privacy=privacy)
    scores = ("--set", "training.private_evaluation={every=3}")

    def not_finite(line: RoundMetrics, materials: Materials) -> None:
        if line.round == 4:
            raise DivergedError("round 4: the held-out loss is nan")
        check_held_out(line, materials)

    monkeypatch.setattr("fedsim.runner.session.check_held_out", not_finite)
    assert fedsim("run", config, "--out", out, *scores).returncode == 1
    monkeypatch.setattr("fedsim.runner.session.check_held_out", check_held_out)
    before = (out / "ledger.json").read_bytes()
    if shares:
        assert read_shared(ledger).ledger.num_releases >= RunFolder(out).read_ledger().num_releases
    done = fedsim("run", config, "--out", out, "--resume", *scores)
    assert done.returncode == 1
    assert "Diverged: round 4: the held-out loss is nan" in done.stderr
    assert not (out / "model").exists()
    report = load_report(out)
    assert report.diverged is not None
    assert NOT_PAID_FOR in report.privacy.assumptions
    assert (out / "ledger.json").read_bytes() == before


def test_parameters_that_are_not_finite_end_the_run(speeches: Path, tmp_path: Path) -> None:
    """Noise times the learning rate is beyond float32 at once; it is charged all the same."""
    config = write(
        tmp_path / "far.toml", speeches, "uls", server=FAR, privacy={"noise_multiplier": 1e3}
    )
    out = tmp_path / "o"
    done = fedsim("run", config, "--out", out)
    assert done.returncode == 1
    assert "Diverged: round 1: " in done.stderr
    assert "parameters are not finite, " in done.stderr
    assert "Traceback" not in done.stderr
    assert [line.round for line in load_metrics(out)] == [0]
    assert not checkpoints_in(out / "checkpoints")
    report = load_report(out)
    assert (report.cost.rounds, report.privacy.rounds) == (0, 6)
    assert report.privacy.epsilon == RunFolder(out).read_ledger().epsilon(1e-3)
    assert NOT_PAID_FOR in report.privacy.assumptions
    assert "no ε covers that decision" in (out / "report.html").read_text(encoding="utf-8")


def test_what_was_finite_before_stays(speeches: Path, tmp_path: Path) -> None:
    """Steps of about 1e38 in random directions leave float32 after some rounds."""
    server = FAR | {"learning_rate": 2e38}
    config = write(
        tmp_path / "far.toml",
        speeches,
        "uls",
        server=server,
        data={"held_out_examples": 0.0},
        privacy={"noise_multiplier": 3.0},
        strategy={"rounds": 40},
    )
    done = fedsim("run", config, "--out", tmp_path / "o")
    assert done.returncode == 1, done.stderr
    lines = load_metrics(tmp_path / "o")
    assert f"Diverged: round {lines[-1].round + 1}: " in done.stderr
    path = checkpoints_in(tmp_path / "o" / "checkpoints")[-1]
    state = load_checkpoint(path)
    assert state.round == lines[-1].round > 0
    assert all_finite(state.parameters)


@pytest.mark.parametrize("held_out", [0.1, 0.0])
def test_large_parameters_and_no_text_to_score_are_no_divergence(
    speeches: Path, tmp_path: Path, held_out: float
) -> None:
    config = write(
        tmp_path / "noisy.toml",
        speeches,
        "uls",
        data={"held_out_examples": held_out},
        privacy={"noise_multiplier": 1e6},
        server={"optimizer": "sgd", "learning_rate": 1.0},
    )
    fedsim_ok("run", config, "--out", tmp_path / "o")
    report = load_report(tmp_path / "o")
    assert report.diverged is None
    assert NOT_PAID_FOR not in report.privacy.assumptions
    path = checkpoints_in(tmp_path / "o" / "checkpoints")[-1]
    assert max(float(v.abs().max()) for v in load_checkpoint(path).parameters.values()) > 1e4


def test_a_sweep_shows_it_and_goes_on(speeches: Path, tmp_path: Path) -> None:
    config = write(tmp_path / "np.toml", speeches, "non-private", server=FAR)
    rates = ("compare", config, "--vary", "server.learning_rate=1e38,0.01", "--out", tmp_path / "o")
    for _ in range(2):  # the second time both are taken as they are
        done = fedsim_ok(*rates)
        assert "Diverged: np,learning_rate=1e38: round 4: the held-out loss" in done.stderr
        table = (tmp_path / "o" / "comparison.md").read_text(encoding="utf-8")
        (row,) = [line for line in table.splitlines() if "| learning_rate = 1e38 " in line]
        assert f"| diverged | {NOTHING} | {NOTHING} |" in row
    assert not list((tmp_path / "o").glob("*.error.txt"))
