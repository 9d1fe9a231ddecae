"""Lines over seeds: intervals with the right coverage, and nothing left out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsim.report.grid_charts import grid_chart, grid_panels
from fedsim.report.grid_page import promises
from fedsim.report.grid_result import (
    GridResult,
    Interval,
    Tuning,
    captions,
    cells,
    grid_table,
    interval,
    terminal_table,
    terms,
    with_reports,
)
from tests.unit.report.grid_samples import grid, line
from tests.unit.report.report_samples import printed, privacy, report, scores


def test_the_interval_is_students() -> None:
    """Against a table: t at 97.5 % with 2 degrees of freedom is 4.302653."""
    found = interval([1.0, 2.0, 3.0])
    assert found is not None and found.mean == 2.0
    assert found.high - 2.0 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert 2.0 - found.low == pytest.approx(found.high - 2.0)


def test_none_and_one() -> None:
    assert interval([]) is None
    assert interval([5.0]) == Interval(mean=5.0, low=5.0, high=5.0)


def test_the_interval_covers_at_its_rate() -> None:
    """And one of 90 % would not pass: 4,000 draws tell 95 % from 90 % by fifteen deviations."""
    draws = np.random.default_rng(0).normal(size=(4_000, 3))
    intervals = [interval(row) for row in draws.tolist()]
    covered = np.mean([one.low <= 0.0 <= one.high for one in intervals if one is not None])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4_000)


def _measurement() -> GridResult:
    good = line("a", losses=(4.0, math.nan, 4.2), budget="64")
    bad = line("b", losses=(), failures=("b,seed=0: RuntimeError: no",), budget="64")
    tuning = Tuning(keys=("rate",), runs=4, gradients=10, seconds=1.0, tried={}, statement="Said.")
    return GridResult(lines=(good, bad), seeds=(0, 1, 2), tuning=tuning, notes=("Note.",))


def test_what_diverged_and_what_failed_is_shown() -> None:
    page = grid_table(_measurement()).markdown()
    assert "3, 1 diverged" in page
    assert "| 4.1000 ± 1.2706 | 9.0 ± 12.7 % |" in page
    assert "means over 2 seeds, with Student's 95 % interval" in page
    assert "0, 1 failed" in page
    assert "Failed: b,seed=0: RuntimeError: no" in page
    assert "ε at δ = 1e-5; unit: user" in page
    assert "Tuning took 4 runs, 10 gradients, 1 s. Said." in captions(_measurement())


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_seed_without_a_finite_epsilon_leaves_none_to_the_line(place: int) -> None:
    """As of a run that was killed, and charged again for what it did again."""
    reports = [report(promise=privacy(epsilon=value)) for value in (2.0, 3.0)]
    assert with_reports(line(losses=()), reports).epsilon == 3.0
    reports.insert(place, report(promise=privacy(epsilon=None)))
    found = with_reports(line(losses=()), reports)
    assert found.epsilon is None
    assert "none" in cells(found)


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([(3.0,)], "of one seed, without an interval; "),
        ([(3.0, 3.1), (math.nan, 3.2)], "means over 1 to 2 seeds, with Student's 95 % interval; "),
    ],
)
def test_the_note_has_the_number_of_seeds(losses: list[tuple[float, ...]], said: str) -> None:
    lines = tuple(line(f"{number}", losses=values) for number, values in enumerate(losses))
    result = grid().model_copy(update={"lines": lines})
    assert f"accuracies are {said}" in " ".join(captions(result))
    assert any(said in note for note in grid_chart(result).notes)
    assert cells(line(losses=(3.0,)))[-1] == "20.0 %"


def test_runs_that_stopped_early_and_trials_that_failed_are_said() -> None:
    measurement = _measurement()
    first, *others = measurement.lines
    stopped = first.model_copy(update={"stopped": ("a,seed=1: the budget ended after 3 of 9",)})
    assert measurement.tuning is not None
    tuning = measurement.tuning.model_copy(update={"failures": 2})
    said = captions(measurement.model_copy(update={"lines": (stopped, *others), "tuning": tuning}))
    assert "Stopped early: a,seed=1: the budget ended after 3 of 9" in said
    assert "2 of them failed: that is at least what they took." in " ".join(said)


def test_a_run_that_stopped_early_is_in_no_mean() -> None:
    """Nor does one that did no round, whose loss is that of the start, count as a seed."""
    whole = report(final=scores(2.4, 0.3))
    cost = whole.cost.model_copy(update={"planned_rounds": whole.cost.rounds + 1})
    early = report(final=scores(9.0, 0.1)).model_copy(update={"cost": cost})
    bare = line(losses=()).model_copy(update={"stopped": ("a,seed=1: the budget ended",)})
    found = with_reports(bare, [whole, early, whole])
    assert found.losses == (2.4, 9.0, 2.4)
    assert found.loss == Interval(mean=2.4, low=2.4, high=2.4)
    assert cells(found)[4] == "3, 1 stopped early"
    assert cells(found)[5] == "2.4000 ± 0.0000"
    result = grid().model_copy(update={"lines": (found,)})
    assert "1 runs stopped early, which no mean has." in grid_chart(result).notes
    assert "means over 2 seeds" in " ".join(captions(result))


def test_terms_are_named_as_the_rows_are() -> None:
    """By what the names of their lines share, unless a line with other terms shares it too."""
    one = tuple(line("mine", name=name, budget="64") for name in ("uls", "els"))
    other = one[1].model_copy(update={"terms": "ε of els"})
    result = grid().model_copy(update={"lines": (one[0], other)})
    assert terms(result.lines) == [
        f"mine,name=uls,budget=64: {one[0].terms}",
        "mine,name=els,budget=64: ε of els",
    ]
    assert [promise.label for promise in promises(result)] == [one.name for one in result.lines]
    assert terminal_table(result).notes[1:3] == [f"name=uls: {one[0].terms}", "name=els: ε of els"]
    lines = tuple(line("mine", epsilon=value, budget="64") for value in ("1", "4"))
    assert terms(lines) == [f"mine,budget=64: {one[0].terms}"]
    assert terminal_table(result.model_copy(update={"lines": lines})).notes[1].startswith("mine: ")
    (rows,) = grid_panels(result)[0].panels
    assert f"mine,name=els,budget=64: {other.terms}. " in rows.caption
    mixed = (*lines, one[0], other)
    assert [said.partition(": ")[0] for said in terms(mixed)] == [
        "; ".join(line.name for line in mixed[:3]),
        other.name,
    ]


def test_json_reads_back_and_csv_has_every_line() -> None:
    measurement = _measurement()
    text = measurement.model_dump_json()
    assert GridResult.model_validate_json(text).model_dump_json() == text
    rows = grid_table(measurement).csv().splitlines()
    assert len(rows) == 3
    assert "set.budget" in rows[0]
    assert "nan" in rows[1]


def test_a_terminal_says_once_what_all_lines_have_in_common() -> None:
    lines = tuple(line("chat", name=name, budget="24") for name in ("uls", "els", "non-private"))
    shown = printed(terminal_table(grid().model_copy(update={"lines": lines})), 80)
    assert "Every line: chat, budget=24." in shown
    for name in ("name=uls", "name=els", "name=non-private"):
        assert any(part.strip().startswith(f"{name} ") for part in shown.splitlines())
    alone = terminal_table(grid().model_copy(update={"lines": lines[:1]}))
    assert alone.rows[0][0] == "chat,name=uls,budget=24"
