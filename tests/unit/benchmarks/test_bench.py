"""`fedsim bench`: names, the JSON's shape, the table, and how interleaved repetitions are taken."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
from typer.testing import CliRunner

from fedsim import registry
from fedsim.cli.main import app
from fedsim.errors import ConfigError
from fedsim.experiments.benchmarks.timing import Row, interleaved, times_as_long
from fedsim.utils.machine import machine, versions


def sleeping() -> list[Row]:
    return [
        Row(benchmark="sleeping", case="long", seconds=1.5, ratio=None, details={"sheep": 3}),
        Row(benchmark="sleeping", case="short", seconds=0.01234567, engine="nap", ratio=2.0),
    ]


Benchmark = Callable[[], Sequence[Row]]


def register(monkeypatch: pytest.MonkeyPatch, **functions: Benchmark) -> None:
    """Register benchmarks in place of fedsim's own."""

    class Entry(EntryPoint):
        def load(self) -> Benchmark:
            return functions[self.name]

    def read(group: str, *_: object) -> EntryPoints:
        assert group == "fedsim.benchmarks"
        return EntryPoints(Entry(name, "none", group) for name in functions)

    monkeypatch.setattr(registry, "_read", read)


@pytest.fixture
def _fakes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Register two benchmarks; return the names of those that ran, in order."""
    ran: list[str] = []

    def waking() -> list[Row]:
        ran.append("waking")
        return [Row(benchmark="waking", case="early", seconds=2.0)]

    def asleep() -> list[Row]:
        ran.append("sleeping")
        return sleeping()

    register(monkeypatch, waking=waking, sleeping=asleep)
    return ran


def bench(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_json_is_one_object_of_machine_versions_and_rows(_fakes: list[str]) -> None:
    answer: dict[str, Any] = json.loads(bench("sleeping", "--json"))
    assert set(answer) == {"machine", "versions", "rows"}
    assert answer["machine"] == machine()
    assert answer["versions"] == versions()
    assert answer["versions"]["dp-accounting"]
    assert answer["machine"]["cpus"] >= 1
    assert answer["rows"] == [dict(row) for row in sleeping()]
    assert _fakes == ["sleeping"]


def test_the_order_asked_for_is_kept(_fakes: list[str]) -> None:
    bench("waking", "sleeping", "--json")
    assert _fakes == ["waking", "sleeping"]


def test_people_get_a_table(_fakes: list[str]) -> None:
    shown = bench()
    for text in ("benchmark", "seconds", "sleeping", "early", "1.5", "0.0123", "nap", "–", "cpus"):
        assert text in shown
    assert "sheep" not in shown  # details are for --json


def test_an_unknown_name_lists_the_known_before_anything_runs(_fakes: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"bench = 'wakin'.*'waking'.*known: sleeping, waking"):
        bench("sleeping", "wakin")
    assert _fakes == []


@pytest.mark.parametrize("group", ["benchmarks", "studies"])
def test_every_registered_name_loads(group: str) -> None:
    assert len(registry.names(group)) >= {"benchmarks": 7, "studies": 20}[group]
    assert all(callable(registry.resolve(group, name, group)) for name in registry.names(group))


def test_tasks_run_in_their_order_and_ratios_are_of_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, ran = [0.0], []

    def task(name: str, durations: list[float]) -> Callable[[], None]:
        def run() -> None:
            ran.append(name)
            clock[0] += durations.pop(0)

        return run

    monkeypatch.setattr("fedsim.experiments.benchmarks.timing.time.perf_counter", lambda: clock[0])
    # In the second turn the machine is ten times as slow; in the third, "b" alone is disturbed.
    durations = {"a": [2.0, 20.0, 2.0, 2.0], "b": [1.0, 10.0, 8.0], "never": []}
    tasks = {name: task(name, list(taken)) for name, taken in durations.items()}
    seconds = interleaved(tasks, ["a", "b", "a", "b", "a", "b", "a"])
    assert ran == ["a", "b", "a", "b", "a", "b", "a"]
    assert seconds == {"a": durations["a"], "b": durations["b"]}
    assert times_as_long(seconds["b"], seconds["a"]) == 0.5
    assert times_as_long(seconds["a"][:1], seconds["b"]) == 2.0


def test_one_that_cannot_run_here_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it was asked for by name."""

    def absent() -> list[Row]:
        raise ConfigError("peers: not installed")

    register(monkeypatch, peers=absent, nap=sleeping)
    done = CliRunner().invoke(app, ["bench", "--json"])
    assert done.exit_code == 0
    assert [row["case"] for row in json.loads(done.stdout)["rows"]] == ["long", "short"]
    assert "Left out: peers: not installed" in done.stderr
    asked = CliRunner().invoke(app, ["bench", "peers"])
    assert isinstance(asked.exception, ConfigError)
