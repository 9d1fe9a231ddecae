"""A few kills by the command that makes hundreds, and what it says when something is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.robustness.__main__ import app
from tests.robustness.outcome import Outcome


def test_killed_runs_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "outcome.json"
    order = ["kills", "--kills", "3", "--seconds", "600", "--seed", "3", "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        app(order)
    said = capsys.readouterr()
    assert ended.value.code == 0, said.out + said.err
    (kills,) = json.loads(out.read_text(encoding="utf-8"))
    assert kills["losses"] == []
    assert kills["counts"]["kills"] == 3
    assert kills["counts"]["runs brought to their end"] >= 1
    assert sum(n for name, n in kills["counts"].items() if name.startswith("killed in")) == 3
    assert "0 lost" in said.out


def test_a_loss_is_told_and_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lossy(folder: Path, seconds: float, seed: int) -> Outcome:
        assert not list(folder.iterdir())
        return Outcome("kills", {"kills": 3}, (f"ledger.json after {seconds:g} s, seed {seed}",))

    monkeypatch.setattr("tests.robustness.faults.faults.run", lossy)
    with pytest.raises(SystemExit) as ended:
        app(["faults", "--seconds", "7", "--seed", "4"])
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "1 lost."
    with pytest.raises(SystemExit) as ended:
        app(["no-such-part"])
    assert ended.value.code == 2
