"""The checks and times for a GPU, at their smallest and on the CPU where there is no GPU."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsim.errors import ConfigError
from fedsim.experiments.benchmarks.gpu import checks
from fedsim.experiments.benchmarks.gpu.__main__ import SLICES, main, measure, results
from fedsim.experiments.benchmarks.gpu.speed import NotMeasured
from fedsim.experiments.benchmarks.timing import Row
from tests.conftest import Capture, Patch


def test_what_needs_no_other_process_passes_at_its_smallest(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """The other slices start processes; `.ci/run` has all of them, by the command."""
    out = tmp_path / "gpu.json"
    chosen = ["350m", "fedavg", "rounds", "llama-8b", "parity"]
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
    expected = {name: ends.get(name, "not measured") for name in SLICES}
    assert results(out) == expected
    assert results(tmp_path / "none.json") == dict.fromkeys(SLICES, "not measured")


def test_the_tests_that_it_runs_are_there() -> None:
    path, _, name = checks._QUICK.partition("::")
    assert f"def {name}(" in (checks.ROOT / path).read_text(encoding="utf-8")
    assert all((checks.ROOT / path).is_file() for path in checks._ON_DEVICE)


def test_a_slice_that_fails_keeps_its_rows_and_stops_no_other(tmp_path: Path) -> None:
    def broken(_device: str, _quick: bool) -> Iterator[Row]:
        yield Row(benchmark="gpu", case="first", seconds=1.0)
        raise ValueError("no second")

    def whole(_device: str, _quick: bool) -> Iterator[Row]:
        yield Row(benchmark="gpu", case="third", seconds=3.0)

    out = tmp_path / "new" / "gpu.json"
    assert measure({"broken": broken, "whole": whole}, "cpu", True, out) == ["broken"]
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["case"] for row in rows] == ["first", "broken", "third", "whole"]
    assert rows[1]["details"] == {"result": "ValueError: no second", "slice": "broken"}
    assert rows[3]["details"] == {"result": "passed", "slice": "whole"}
    assert measure({"broken": whole}, "cpu", True, out) == []
    again = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [row["case"] for row in again] == ["third", "whole", "third", "broken"]


def test_a_slice_that_takes_too_long_ends_and_one_that_has_nothing_to_measure_says_why(
    tmp_path: Path,
) -> None:
    def endless(_device: str, _quick: bool) -> Iterator[Row]:
        yield Row(benchmark="gpu", case="first", seconds=1.0)
        threading.Event().wait()

    def nothing(_device: str, _quick: bool) -> Iterator[Row]:
        yield from ()
        raise NotMeasured("there is no such key")

    out = tmp_path / "gpu.json"
    assert measure({"a": endless, "b": nothing}, "cpu", True, out, limit=1) == ["a"]
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [(row["case"], row["details"].get("result")) for row in rows] == [
        ("first", None),
        ("a", "TimeoutError: ended after 1 s"),
        ("b", "not measured: there is no such key"),
    ]
    content = json.loads(out.read_text(encoding="utf-8"))
    content["machine"]["gpu"] = "another"
    out.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ConfigError, match="its rows come from another machine"):
        measure({}, "cpu", True, out)


@pytest.mark.parametrize("given", [["speed"], ["--quick", "parity", "speed"]])
def test_a_slice_that_there_is_not(given: list[str], tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*given, "--out", str(tmp_path / "gpu.json")])
    assert ended.value.code == 2
    assert (
        "known: 350m, gpt2, fedavg, rounds, workers, llama-8b, parity, tests, resume"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "gpu.json").exists()
