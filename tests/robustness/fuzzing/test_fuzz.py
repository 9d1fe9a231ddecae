"""Hostile inputs for a while, and a look at whether the fuzzer would see a broken reader."""

from __future__ import annotations

from pathlib import Path

from tests.robustness.fuzzing.broken_readers import TARGETS
from tests.robustness.fuzzing.fuzz import fuzz, run

BROKEN = "tests.robustness.fuzzing.broken_readers"


def test_nothing_hostile_is_believed(tmp_path: Path) -> None:
    outcome = run(tmp_path, seconds=2, seed=20261121)
    assert not outcome.losses
    assert outcome.counts["inputs"] > 10


def test_every_kind_of_broken_reader_is_seen(tmp_path: Path) -> None:
    outcome = fuzz(tmp_path, seconds=0, seed=1, targets=f"{BROKEN}:TARGETS", hang=0.5, each=1)
    seen = {line.partition(",")[0]: line for line in outcome.losses}
    assert set(seen) == {target.name for target in TARGETS}
    assert "KeyError" in seen["raises"]
    assert "no end" in seen["hangs"]
    assert "no end" in seen["sleeps"]
    assert "MemoryError" in seen["allocates"]
    assert "died" in seen["crashes"]
    assert "left-behind" in seen["writes_outside"]
    assert "must not: open" in seen["swallows"]
    assert "pickle.find_class" in seen["unpickles"]
    kept = {path.name for path in (tmp_path / "losses").iterdir()}
    assert kept == {f"{name}-0" for name in seen}


def test_what_is_taken_or_refused_is_counted_and_no_loss(tmp_path: Path) -> None:
    outcome = fuzz(tmp_path, seconds=0, seed=1, targets=f"{BROKEN}:SOUND", each=2)
    assert outcome.counts == {"inputs": 4, "accepts: accepted": 2, "refuses: refused": 2}
    assert not outcome.losses
