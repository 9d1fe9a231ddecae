"""The benchmark of processes side by side: one for a moment, and the ratios of given rates."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedsim.experiments.benchmarks import processes
from tests.conftest import Capture, Patch


def test_a_process_says_what_it_did(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))
    assert processes._work(0.05) > 0.0
    assert capsys.readouterr().out.startswith("ready, ")


def test_what_processes_did_is_added_up(tmp_path: Path, monkeypatch: Patch) -> None:
    script = (
        f'#!/bin/sh\ntest "$1 $2" = "-m {processes.__name__}" || exit 1\necho ready\nread go\n'
        'echo "{\\"units_per_second\\": $OMP_NUM_THREADS.5}"\n'
    )
    (tmp_path / "python").write_text(script)
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert processes.units_a_second(2, {"OMP_NUM_THREADS": "1"}, 0.05) == 3.0


def test_ratios_are_to_the_way_that_the_row_names(monkeypatch: Patch) -> None:
    def rate(count: int, environment: Mapping[str, str], seconds: float) -> float:
        assert seconds == 3.0
        return 100.0 if count == 1 else 80.0 if "OMP_WAIT_POLICY" in environment else 40.0

    monkeypatch.setattr(processes, "units_a_second", rate)
    rows = {row["case"]: row for row in processes.run(seconds=3.0, turns=2)}
    assert rows["two, as fedsim lets them wait"]["ratio"] == 2.0
    assert rows["two, as torch waits by itself"]["ratio"] == 1.0
    alone = rows["alone, as fedsim lets it wait"]
    assert alone["ratio"] == 1.0
    assert alone["details"]["ratio_to"] == "alone, as torch waits by itself"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ["PASSIVE", "4000"]),
        ({"GOMP_SPINCOUNT": "7"}, ["PASSIVE", "7"]),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ["ACTIVE", "None"]),
    ],
)
def test_fedsim_sets_how_threads_wait_unless_it_is_set(
    asked: Mapping[str, str], expected: list[str]
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    others = {name: value for name, value in os.environ.items() if name not in names}
    script = f"import os, fedsim.cli.main; print(*map(os.environ.get, {names}))"
    printed = subprocess.check_output([sys.executable, "-c", script], env={**others, **asked})
    assert printed.decode().split() == expected
