"""The order of the runs of the study of server steps, and its counts of made-up losses."""

from __future__ import annotations

from collections.abc import Mapping

from fedsim.experiments.studies.de_2022.server_step import contests, counts, grid_of, table
from fedsim.experiments.studies.de_2022.server_step_runs import (
    AUTO,
    DEFAULTS,
    PLAN,
    STEPS,
    Corpus,
    Line,
    Scale,
    Setting,
)
from fedsim.report.grid_result import CellResult
from fedsim.report.intervals import interval

SETTING = Setting(Corpus("plays"), 32.0, 30, 8.0)


def line(way: str, losses: Mapping[int, float], setting: Setting = SETTING) -> Line:
    result = CellResult(
        name=setting.name(way),
        source=way,
        strategy="uls",
        settings=setting.labels,
        chosen={},
        seeds=tuple(losses),
        losses=tuple(losses.values()),
        loss=interval([*losses.values()]),
        averaged=tuple(losses),
    )
    return Line(setting, way, result, dict.fromkeys(losses, 7.0))


LINES = [
    line(DEFAULTS, {0: 6.0, 1: 7.1}),
    line(PLAN, {0: 5.5, 1: 6.5}),
    line(AUTO, {0: 6.1}),
    *(line(way, {0: 6.0 if way == "sgd 0.4" else 6.8}) for way in STEPS),
]


def test_the_grid_has_twelve_constant_rates() -> None:
    assert len(STEPS) == 12
    assert all("schedule" not in step["server"] for step in STEPS.values())


def test_cheap_stages_of_all_seeds_come_first() -> None:
    stages = Scale((Corpus("plays"), Corpus("chats"))).stages()
    assert [stage.seed for stage in stages[:4]] == [0, 1, 2, 0]
    assert stages[0].ways == (DEFAULTS, PLAN)
    assert {one.labels["cohort"] for one in stages[0].settings} == {"32"}
    grids = [stage for stage in stages if AUTO in stage.ways]
    cells = {(one.cohort, one.rounds, one.epsilon) for stage in grids for one in stage.settings}
    assert cells == {(32.0, 30, 8.0), (32.0, 30, 2.0), (32.0, 150, 8.0)}
    assert sum(len(stage.settings) * len(stage.ways) for stage in stages) == 3 * 32 + 3 * 2 * 13


def test_each_question_has_its_count() -> None:
    found = contests(LINES, len(STEPS))
    below, planned, better, near, large = counts(LINES, found)
    assert below == "With defaults the final loss is below the first in 1 of 2 runs."
    assert planned == "With the plan the final loss is below the first in 2 of 2 runs."
    assert "at or below that of defaults in 1 of 1 cells" in better
    assert "at least 0.85 times as much as the best rate of the grid in 1 of 1 cells" in near
    assert "at least 1.3 times as much as the best rate of the grid in 1 of 1 cells" in large
    assert grid_of(found).rows == [
        ["plays", "32", "30", "8", "sgd 0.4", "1.0000", "1.00", "1.50", "0.90"]
    ]
    first, second = table(LINES).rows
    assert first[5:7] == ["7.0000", "6.5500"]
    assert first[7].startswith("−0.4500 ± ")
    assert (first[8], second[8]) == ("1 of 2", "2 of 2")


def test_a_grid_counts_when_it_is_complete_and_gains_something() -> None:
    assert contests(LINES[:-1], len(STEPS)) == []
    worse = [line(DEFAULTS, {0: 6.5}), *(line(way, {0: 7.2}) for way in STEPS)]
    (contest,) = contests(worse, len(STEPS))
    assert contest.share(DEFAULTS) is None
    assert contest.best_new is None
