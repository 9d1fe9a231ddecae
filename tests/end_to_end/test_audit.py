"""`fedsim audit` from the command line: a real run with canaries, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

from fedsim.audit import mechanism, tables
from fedsim.audit.mutants import judge, mutants
from tests.helpers.commands import fedsim, fedsim_json, write_config


def test_a_run_is_audited_and_no_model_is_left(speeches: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "run.toml", speeches, privacy={"delta": 1e-6})
    out = tmp_path / "out"
    printed = fedsim_json("audit", config, "--canaries", "60", "--out", out)
    assert printed == json.loads((out / "audit.json").read_text(encoding="utf-8"))
    assert printed["holds"]
    assert printed["bound"]["epsilon"] <= printed["claimed_epsilon"]
    assert {"delta", "confidence", "canaries"} <= printed["bound"].keys()
    assert "under the add-or-remove-one user relation" in printed["statement"]
    assert "Poisson sampling of users" in printed["statement"]
    assert printed["accountant"] == "pld"
    assert [path.name for path in out.iterdir()] == ["audit.json"]


def test_an_override_without_a_config_is_refused() -> None:
    assert "--set" in fedsim("audit", "--set", "seed=1").complaint


def test_the_verdict_on_ourselves_can_fail() -> None:
    """All is well only if claims hold, bugs are caught and the true code is let pass."""
    setting = mechanism.SETTINGS[1]
    audits = mechanism.audit_settings((setting,), (4.0,), delta=mechanism.DELTA, trials=20_000)
    quick = [judge(mutants()[0], 100)]
    assert tables.all_well(audits, quick)
    assert json.loads(json.dumps(tables.to_json(audits, quick)))["all_well"]
    unseen = [type(quick[0])(**{**vars(quick[0]), "caught_by": "nothing"})]
    alarmed = [type(quick[0])(**{**vars(quick[0]), "false_alarm": True})]
    assert not tables.all_well(audits, unseen)
    assert not tables.all_well(audits, alarmed)
    refuted = [[type(audits[0][0])(**{**vars(audits[0][0]), "claimed_epsilon": 0.01})]]
    assert not tables.all_well(refuted, quick)
    assert tables.mechanisms(audits).row_count == 1
    assert tables.bugs(quick).row_count == 1
