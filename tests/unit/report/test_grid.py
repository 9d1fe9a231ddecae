"""Lines over seeds: intervals with the right coverage, nothing left out, an ε with its terms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsim.report.differences import differences
from fedsim.report.figures import Panel
from fedsim.report.grid_page import grid_chart, grid_panels, promises, render_grid
from fedsim.report.grid_result import (
    INTERVAL_NOTE,
    CellResult,
    GridResult,
    Tuning,
    captions,
    cells,
    grid_table,
    terms,
    with_reports,
)
from fedsim.report.intervals import Interval, interval
from tests.unit.report.grid_samples import BUDGETS, EPSILONS, grid, line
from tests.unit.report.report_samples import printed, privacy, report, scores

TERMS = "unit: user; neighbouring relation: add or remove one user; sampler: Poisson over users"


def of(*lines: CellResult) -> GridResult:
    return GridResult(lines=lines, seeds=(0, 1, 2), differences=differences(lines))


def panels(result: GridResult) -> list[Panel]:
    return [panel for _, group in grid_panels(result) for panel in group]


def test_the_interval_is_students_and_covers_at_its_rate() -> None:
    """Against a table: t at 97.5 % with 2 degrees of freedom is 4.302653."""
    found = interval([1.0, 2.0, 3.0])
    assert found is not None and found.mean == 2.0
    assert found.high - 2.0 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert 2.0 - found.low == pytest.approx(found.high - 2.0)
    assert interval([]) is None
    assert interval([5.0]) == Interval(mean=5.0, low=5.0, high=5.0)
    draws = np.random.default_rng(0).normal(size=(4_000, 3))
    intervals = [interval(row) for row in draws.tolist()]
    covered = np.mean([one.low <= 0.0 <= one.high for one in intervals if one is not None])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4_000)


def _measurement() -> GridResult:
    good = line("a", losses=(4.0, math.nan, 4.2), budget="64")
    bad = line("b", losses=(), failures=("b,seed=0: RuntimeError: no",), budget="64")
    tuning = Tuning(keys=("rate",), runs=4, gradients=10, seconds=1.0, tried={}, statement="Said.")
    return GridResult(lines=(good, bad), seeds=(0, 1, 2), tuning=tuning, notes=("Note.",))


def test_the_table_has_diverged_failed_and_stopped_runs_and_the_cost_of_tuning() -> None:
    page = grid_table(_measurement()).markdown()
    for part in (
        "3, 1 diverged",
        "| 4.1000 ± 1.2706 | 9.0 ± 12.7 % |",
        INTERVAL_NOTE,
        "0, 1 failed",
        "Failed: b,seed=0: RuntimeError: no",
        "ε at δ = 1e-5; unit: user",
        "Tuning took 4 runs, 10 gradients, 1 s. Said.",
    ):
        assert part in page
    (first, *others), tuning = _measurement().lines, _measurement().tuning
    assert tuning is not None
    stopped = first.model_copy(update={"stopped": ("a,seed=1: the budget ended after 3 of 9",)})
    costly = tuning.model_copy(update={"failures": 2})
    found = captions(of(stopped, *others).model_copy(update={"tuning": costly}))
    assert "Stopped early: a,seed=1: the budget ended after 3 of 9" in found
    assert "2 runs failed; the cost does not include them." in " ".join(found)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_seed_without_a_finite_epsilon_leaves_none_to_the_line(place: int) -> None:
    """As of a run that was killed, and charged again for the rounds it did again."""
    bare = line(losses=())
    reports = [report(promise=privacy(epsilon=value)) for value in (2.0, 3.0)]
    assert with_reports(bare.model_copy(update={"seeds": (0, 1)}), reports).epsilon == 3.0
    reports.insert(place, report(promise=privacy(epsilon=None)))
    found = with_reports(bare.model_copy(update={"seeds": (0, 1, 2)}), reports)
    assert found.epsilon is None
    assert cells(found)["ε"] == "none"


def test_a_run_that_stopped_early_is_in_no_mean() -> None:
    """Nor does one that did no round, whose loss is that of the start, count as a seed."""
    whole = report(final=scores(2.4, 0.3))
    cost = whole.cost.model_copy(update={"planned_rounds": whole.cost.rounds + 1})
    early = report(final=scores(9.0, 0.1)).model_copy(update={"cost": cost})
    stopped = {"stopped": ("a,seed=1: the budget ended",), "seeds": (0, 1, 2)}
    found = with_reports(line(losses=()).model_copy(update=stopped), [whole, early, whole])
    assert found.counted_losses == {0: 2.4, 2: 2.4}
    assert found.losses == (2.4, 9.0, 2.4)
    assert found.loss == Interval(mean=2.4, low=2.4, high=2.4)
    assert cells(found)["seeds"] == "3, 1 stopped early"
    assert cells(found)["loss"] == "2.4000 ± 0.0000"
    assert "Stopped early: a,seed=1: the budget ended" in grid_chart(of(found)).notes


def test_terms_are_named_as_the_rows_are() -> None:
    """By the common part of their lines' names, unless a line with other terms has it too."""
    one, other = (line("mine", name=name, budget="64") for name in ("uls", "els"))
    other = other.model_copy(update={"privacy": privacy(unit="owner")})
    result = of(one, other)
    assert terms(result.lines) == [f"uls: {one.terms}", f"els: {other.terms}"]
    assert [label for label, _, _ in promises(result)] == ["uls", "els"]
    lines = tuple(line("mine", epsilon=value, budget="64") for value in ("1", "4"))
    assert terms(lines) == [f"mine: {one.terms}"]
    mixed = (*lines, one, other)
    assert [text.partition(": ")[0] for text in terms(mixed)] == ["ε = 1; ε = 4; uls", "els"]


def test_json_reads_back_and_csv_has_every_line() -> None:
    text = _measurement().model_dump_json()
    assert GridResult.model_validate_json(text).model_dump_json() == text
    head, good, _ = grid_table(_measurement()).csv().splitlines()
    assert "set.budget" in head and "nan" in good


def test_a_terminal_has_the_common_part_of_the_names_once() -> None:
    lines = [line("chat", name=name, budget="24") for name in ("uls", "els", "non-private")]
    shown = printed(grid_table(of(*lines)), 80)
    assert "Every line: chat, budget = 24." in shown
    for name in ("uls", "els", "non-private"):
        assert any(part.strip().startswith(f"{name} ") for part in shown.splitlines())
    alone = grid_table(of(lines[0]))
    assert alone.rows[0][0] == "chat" and alone.notes[0] == "Every line: chat, uls, budget = 24."


def test_panels_are_over_what_varies_one_for_each_value_of_the_other() -> None:
    titles = [panel.title for panel in panels(grid())]
    assert titles == [
        *(f"{budget} gradients per round" for budget in BUDGETS),
        *(f"ε = {value}" for value in EPSILONS),
    ]
    assert [len(row) for row in grid_chart(grid()).rows] == [len(BUDGETS), len(EPSILONS)]
    (only,) = panels(of(*(one for one in grid().lines if one.settings["budget"] == "32")))
    assert only.title == "Privacy and loss"
    (rows,) = panels(of(line("a"), line("b")))
    assert rows.rows == ["a · 3.02 · ε = 8.00", "b · 3.02 · ε = 8.00"]
    several = [line("a", epsilon=e, group_size=k) for e in ("1", "4") for k in ("2", "8")]
    (panel,) = panels(of(*several))
    assert [series.name for series in panel.series] == ["group_size = 2", "group_size = 8"]


def test_every_finite_result_is_drawn_with_its_interval_and_every_other_is_noted() -> None:
    over_budget = [panel for panel in panels(grid()) if panel.key.startswith("budget")]
    drawn = {p for panel in over_budget for one in panel.series for p in one.points}
    for one in grid().lines:
        if one.loss is not None:
            assert (one.budget, one.loss.mean, one.loss.low, one.loss.high) in drawn
    failed = "Failed: uls,epsilon=1,budget=32: no trial gave a finite loss: diverged"
    assert failed in grid_chart(grid()).notes and failed in render_grid(grid())


def test_a_line_without_a_guarantee_crosses_every_panel_over_epsilon() -> None:
    lines = (line("a", epsilon="1"), line("a", epsilon="4"), line("plain", promised=False))
    (panel,) = panels(of(*lines))
    _, level = panel.series
    assert panel.x.limits is not None
    assert [level.points[0].at, level.points[-1].at] == [*panel.x.limits]
    assert len({point.value for point in level.points}) == 1


def test_a_loss_that_blew_up_does_not_flatten_the_others() -> None:
    (panel,) = panels(of(line("a"), line("blown", losses=(1e9, 2e9))))
    assert panel.x.limits is not None
    low, high = panel.x.limits
    assert 2.5 < low < 3.0 < 3.3 < high < 4.0


def test_an_epsilon_is_never_without_its_terms() -> None:
    assert [label for label, _, _ in promises(grid())] == ["uls", "els", "plain"]
    page = render_grid(grid())
    assert "(ε = 1.00, 4.00, 16.00, δ = 1e-5) for each user" in page
    assert "No privacy guarantee" in page
    assert f": simulated ε at δ = 1e-5; {TERMS}; accountant: pld; " in page
    supposed = line("a").model_copy(update={"privacy": privacy(hypothetical=True)})
    assert "hypothetical, no guarantee: (ε = 8.00" in render_grid(of(supposed))
    assert cells(supposed)["ε"] == "8.00 (hypothetical)"
    failed = of(line("a", losses=(), failures=("a,seed=0: no",)))
    assert "there is no guarantee" in render_grid(failed)


def test_the_page_has_the_cost_of_tuning() -> None:
    page = render_grid(grid())
    assert "learning_rate chosen for each line by held-out loss." in page
    assert "Tuning took 36 runs, 123,456 gradients, 61 s." in page
