"""The checks and times for a GPU, at their smallest and on the CPU where there is no GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedsim.experiments.benchmarks.gpu import checks, speed
from fedsim.experiments.benchmarks.gpu.__main__ import main, measure
from fedsim.experiments.benchmarks.timing import Row
from tests.conftest import Capture, Patch


def test_what_needs_no_other_process_passes_at_its_smallest(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """The other sections start processes; `.ci/run` has all of them, by the command."""
    out = tmp_path / "gpu.json"
    chosen = ["parity", "ratios"]
    monkeypatch.setattr("sys.argv", ["gpu", *chosen, "--quick", "--out", str(out)])
    assert main() == 0
    answer = json.loads(out.read_text(encoding="utf-8"))
    assert {"machine", "versions", "command", "rows"} == set(answer)
    assert "--quick" in answer["command"]
    rows = answer["rows"]
    assert all(row["benchmark"] == "gpu" for row in rows)
    ends = {row["case"]: row["details"]["result"] for row in rows if row.get("engine") == "all"}
    assert ends == dict.fromkeys(chosen, "passed")
    engines = {row["engine"] for row in rows if row["case"].startswith("parity:")}
    assert engines == {"loop", "auto", "vmap", "materialised", "ghost"}


def test_the_tests_that_it_runs_are_there() -> None:
    path, _, name = checks._QUICK.partition("::")
    assert f"def {name}(" in (checks.ROOT / path).read_text(encoding="utf-8")
    assert all((checks.ROOT / path).is_file() for path in checks._ON_DEVICE)


def test_a_section_that_fails_keeps_its_rows_and_stops_no_other(tmp_path: Path) -> None:
    def broken(_device: str, _quick: bool) -> Iterator[Row]:
        yield Row(benchmark="gpu", case="first", seconds=1.0)
        raise ValueError("no second")

    def whole(_device: str, _quick: bool) -> Iterator[Row]:
        yield Row(benchmark="gpu", case="third", seconds=3.0)

    out = tmp_path / "new" / "gpu.json"
    assert measure({"broken": broken, "whole": whole}, "cpu", True, out) == ["broken"]
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["case"] for row in rows] == ["first", "broken", "third", "whole"]
    assert rows[1]["details"] == {"result": "ValueError: no second", "section": "broken"}
    assert rows[3]["details"] == {"result": "passed", "section": "whole"}
    assert measure({"broken": whole}, "cpu", True, out) == []
    again = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["case"] for row in again] == ["third", "whole", "third", "broken"]


def test_of_a_section_some_cases_can_be_measured_again(tmp_path: Path) -> None:
    def found(*cases: str) -> Callable[[str, bool], Iterator[Row]]:
        return lambda *_: iter([Row(benchmark="gpu", case=case, seconds=1.0) for case in cases])

    out = tmp_path / "gpu.json"
    measure({"ratios": found("small", "large, slow", "large")}, "cpu", True, out)
    measure({"ratios": found("large", "large, slow")}, "cpu", True, out, "large")
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["case"] for row in rows] == ["small", "large", "large, slow", "ratios"]


def test_a_case_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"no case has 'tiny' in its name; there are GPT-2"):
        list(speed.ratios("cpu", quick=False, only="tiny"))
    with pytest.raises(SystemExit) as ended:
        main(
            ["--quick", "parity", "ratios", "--case", "small", "--out", str(tmp_path / "gpu.json")]
        )
    assert ended.value.code == 2


@pytest.mark.parametrize("given", [["speed"], ["--quick", "parity", "speed"]])
def test_a_section_that_there_is_not(given: list[str], tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*given, "--out", str(tmp_path / "gpu.json")])
    assert ended.value.code == 2
    assert "known: parity, tests, resume, ratios, workers" in capsys.readouterr().err
    assert not (tmp_path / "gpu.json").exists()
