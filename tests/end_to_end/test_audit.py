"""`fedsim audit` from the command line: a real run with canaries, and what it refuses."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedsim.audit.one_run import OneRunBound
from fedsim.audit.real_run import RunAudit
from fedsim.cli.audit import _show_run
from tests.helpers.commands import fedsim, fedsim_json, fedsim_ok, write_config


def written_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "audit.json").read_text(encoding="utf-8"))
    return found


def test_a_run_is_audited_and_no_model_is_left(speeches: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.toml", speeches, privacy={"delta": 1e-6})
    out = tmp_path / "out"
    printed = fedsim_json("audit", config, "--canaries", "60", "--out", out)
    assert printed == written_of(out)
    assert printed["holds"]
    assert printed["bound"]["epsilon"] <= printed["claimed_epsilon"]
    assert {"delta", "confidence", "canaries"} <= printed["bound"].keys()
    assert "under the add-or-remove-one user relation" in printed["statement"]
    assert "Poisson sampling of users" in printed["statement"]
    assert printed["accountant"] == "pld"
    assert any("No ε covers its releases" in said for said in printed["assumptions"])
    assert printed["config"] == str(config)
    assert printed["bound"]["epsilon"] <= printed["perfect"]
    assert printed["could_refute"] == (printed["perfect"] > printed["claimed_epsilon"])
    assert [path.name for path in out.iterdir()] == ["audit.json"]


def test_a_finished_runs_config_is_audited_by_losses_alone(speeches: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.toml", speeches, privacy={"delta": 1e-6})
    run = tmp_path / "run"
    fedsim_ok("run", config, "--out", run)
    before = sorted(path for path in run.rglob("*"))
    out = tmp_path / "out"
    arguments = ("audit", run, "--black-box", "--canaries", "40", "--out", out)
    plain = fedsim_json(*arguments, "--bound", "steinke")
    assert plain == written_of(out)
    assert (plain["method"], plain["p_value"]) == ("steinke", None)
    told = fedsim(*arguments)
    assert "confidence, assuming this mechanism: " in told.stdout
    refutes = "which would have" if written_of(out)["could_refute"] else "which could not have"
    assert f"{refutes} refuted the claim." in told.stdout
    written = written_of(out)
    assert (written["holds"], written["method"]) == (True, "f-dp")
    assert written["attack"] == "the final model's losses"
    assert 0.0 < written["p_value"] <= 1.0
    assert "under the add-or-remove-one user relation" in written["statement"]
    assert "Under the claimed trade-off curve" in told.stdout
    assert told.stdout.endswith(f"Audit: {out / 'audit.json'}\n")
    assert "audit: round 4 of 4" in told.stderr  # where there is no terminal for a bar
    assert sorted(path for path in run.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("CONFIG", "--black-box", "--bound", "both"), "--bound"),
        (("CONFIG", "--bound", "f-dp"), "--bound"),
    ],
)
def test_wrong_options_are_refused(
    speeches: Path, tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    config = str(write_config(tmp_path / "run.toml", speeches, privacy={"delta": 1e-6}))
    given = [config if word == "CONFIG" else word for word in arguments]
    assert complaint in fedsim("audit", *given, "--canaries", "4").complaint
    assert not (tmp_path / "runs").exists()


def test_bounds_are_printed_on_their_safe_side() -> None:
    """A lower bound rounded down, what can be shown at most and a p-value up."""
    shown = RunAudit(
        statement="ε = 4",
        claimed_epsilon=4.0,
        accountant="pld",
        relation="add-or-remove-one user",
        bound=OneRunBound(0.22876, 1e-5, 0.95, 100, 10, 9),
        perfect=1.54321,
        could_refute=False,
        included=50,
        rounds=3,
        method="f-dp",
        p_value=0.12341,
    )
    console = Console(file=io.StringIO(), width=400)
    _show_run(shown, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "is at least 0.2287, with 95% confidence, assuming this mechanism" in text
    assert "perfect scores would show ε of at least 1.544, which could not have refuted" in text
    assert "or more have probability at most 0.124." in text
