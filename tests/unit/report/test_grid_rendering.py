"""A measured grid drawn: every line is in it, also what failed, and an ε has its terms."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from typing import Any

from PIL import Image
from plotly import graph_objects as go
from plotly.offline import get_plotlyjs

from fedsim.accounting.statement import noise_terms
from fedsim.report.charts import Cross, Level, Panel, Point, Series
from fedsim.report.grid_charts import (
    grid_chart,
    grid_panels,
    hover_lines,
    loss_limits,
    problem_text,
    slices,
)
from fedsim.report.grid_page import promises, render_grid, runs, trial_rows
from fedsim.report.grid_result import CellResult, GridResult
from fedsim.report.pictures import draw
from fedsim.report.plots import plots
from tests.unit.report.grid_samples import BUDGETS, EPSILONS, grid, line

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>$x_"
TERMS = "unit: user; neighbouring relation: add or remove one user; sampler: Poisson over users"


def of(*lines: CellResult) -> GridResult:
    return GridResult(lines=lines, seeds=(0, 1, 2))


def own(measurement: GridResult) -> str:
    return render_grid(measurement).replace(get_plotlyjs(), "")


def traces(measurement: GridResult) -> list[dict[str, Any]]:
    """Return all that plotly draws, as the page holds it."""
    found = re.findall(r'json" id="figure-[^"]*">(.*?)</script>', own(measurement))
    return [trace for figure in found for trace in json.loads(figure)["data"]]


def test_panels_are_over_what_varies_one_for_each_value_of_the_other() -> None:
    over_epsilon, over_budget = grid_panels(grid())
    assert [panel.title for panel in over_epsilon.panels] == [
        f"{budget} gradients a round" for budget in BUDGETS
    ]
    assert [panel.title for panel in over_budget.panels] == [f"ε = {value}" for value in EPSILONS]
    one_budget = of(*(one for one in grid().lines if one.settings["budget"] == "32"))
    (only,) = grid_panels(one_budget)
    assert (only.title, len(only.panels)) == ("Privacy and loss", 1)
    (rows,) = grid_panels(of(line("a"), line("b")))
    assert [panel.rows for panel in rows.panels] == [["a, ε = 8.00", "b, ε = 8.00"]]


def test_every_line_is_in_every_chart() -> None:
    for over in ("epsilon", "budget"):
        placed = [
            place.line.name
            for part in slices(grid().lines, over)
            for curve in part.curves
            for place in curve.places
        ]
        assert sorted(placed) == sorted(one.name for one in grid().lines)


def test_a_line_to_which_the_grid_gave_no_epsilon_is_in_every_panel() -> None:
    lines = (line("a", epsilon="1"), line("a", epsilon="4"), line("plain", promised=False))
    (part,) = slices(lines, "epsilon")
    level = next(curve for curve in part.curves if curve.label == "plain")
    assert level.level
    assert len(level.places) == 1


def test_other_settings_are_series_of_their_own() -> None:
    lines = [line("a", epsilon=e, group_size=k) for e in ("1", "4") for k in ("2", "8")]
    (group,) = grid_panels(of(*lines))
    (panel,) = group.panels
    assert [series.name for series in panel.series] == ["a, group_size = 2", "a, group_size = 8"]


def test_the_picture_has_the_panels_of_the_page() -> None:
    chart = grid_chart(grid())
    assert [panel for row in chart.rows for panel in row] == [
        panel for group in grid_panels(grid()) for panel in group.panels
    ]
    assert [len(row) for row in chart.rows] == [len(BUDGETS), len(EPSILONS)]


def test_the_points_are_the_measurements_numbers() -> None:
    drawn = {
        (x, y)
        for trace in traces(grid())
        if "lines" in trace["mode"] and trace.get("fill") != "toself"
        for x, y in zip(trace["x"], trace["y"], strict=True)
    }
    for one in grid().lines:
        if one.loss is not None:
            assert (one.budget, one.loss.mean) in drawn
            if one.epsilon is not None:
                assert (one.epsilon, one.loss.mean) in drawn


def test_the_bands_are_the_intervals() -> None:
    bands = {y for trace in traces(grid()) if trace.get("fill") == "toself" for y in trace["y"]}
    losses = [one.loss for one in grid().lines if one.loss is not None]
    assert bands == {end for loss in losses for end in (loss.low, loss.high)}


def test_what_failed_or_diverged_is_a_cross_that_says_so() -> None:
    crosses = [t["text"][0] for t in traces(grid()) if t["mode"] == "markers+text"]
    # Once over ε, once over budgets.
    assert sorted(crosses) == sorted(
        2 * ["uls: failed", "els: 3 of 3 diverged", "uls: 1 of 3 diverged"]
    )
    page = own(grid())
    assert "<li>uls,epsilon=1,budget=32: no trial gave a finite loss: diverged</li>" in page
    assert re.search(r"<td>els,epsilon=1,budget=32,seed=1</td><td [^>]*>diverged</td>", page)


def test_what_blew_up_is_marked_and_does_not_flatten_the_others() -> None:
    blown = line("blown", losses=(1e9, 2e9))
    lines = (line("a"), blown)
    low, high = loss_limits(lines)
    assert 2.5 < low < 3.0 < 3.3 < high < 4.0
    assert problem_text(blown, (low, high)) == "loss 1.5e+09"
    assert problem_text(line("a"), (low, high)) == ""


def test_runs_keep_their_seeds_where_one_failed() -> None:
    part = line("a", losses=(3.0, math.nan), failures=("a,seed=1: RuntimeError: no",))
    part = part.model_copy(update={"seeds": (0, 2)})
    assert runs(part) == [
        ("a,seed=0", "3.0000"),
        ("a,seed=2", "diverged"),
        ("a", "failed: a,seed=1: RuntimeError: no"),
    ]


def test_an_epsilon_is_never_without_its_terms() -> None:
    page = own(grid())
    uls, els, plain = promises(grid())
    assert uls.headline == "ε = 1.00, 4.00, 16.00 at δ = 1e-5 for each user"
    assert {term for term, _ in els.facts} >= {
        *("ε", "δ", "Unit", "Neighbouring relation", "Sampler", "Accountant")
    }
    assert (plain.headline, plain.guaranteed) == ("No privacy guarantee", False)
    body = page.index("<main>")
    first = page.index(uls.headline, body)
    assert first < page.index("<table", body) < page.index('class="plot"', body)
    for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        assert f"uls: ε at δ = 1e-5; {TERMS}; accountant: pld; {noise_terms('seeded')}." in figure
    hovered = hover_lines(next(one for one in grid().lines if one.loss and one.epsilon))
    assert all(part in hovered for part in (*TERMS.split("; "), "ε at δ = 1e-5", "ε = 1.00"))


def test_a_hypothetical_epsilon_is_called_so() -> None:
    supposed = line("a").model_copy(update={"hypothetical": True})
    (promise,) = promises(of(supposed))
    assert promise.headline.startswith("hypothetical, no guarantee: ε = 8.00")
    assert not promise.guaranteed


def test_nothing_that_ran_promises_nothing() -> None:
    failed = of(line("a", losses=(), failures=("a,seed=0: no",)))
    assert "nothing is promised" in own(failed)
    assert Image.open(io.BytesIO(draw(grid_chart(failed)))).size[0] == 1600


def test_tuning_shows_what_was_tried_and_chosen() -> None:
    heads, rows = trial_rows(grid())
    assert heads == ["0.1", "1"]
    assert dict(rows)["els,epsilon=4,budget=32"] == ["3.0000 (chosen)", "failed or diverged"]
    page = own(grid())
    assert "learning_rate chosen for each line by held-out loss." in page
    assert re.search(r"Per-example gradients</dt><dd>123,456<", page)


def test_names_are_text_in_the_page_and_in_the_plots() -> None:
    for lines in ([line(HOSTILE), line("b")], [line(HOSTILE, epsilon="1"), line("b", epsilon="4")]):
        page = own(of(*lines))
        assert "<script>alert" not in page
        assert "<img" not in page
        for trace in traces(of(*lines)):
            texts = [trace.get("name", ""), *trace["text"]]
            assert not any("<script" in text or "<img" in text for text in texts)


def test_the_pictures_grow_with_their_panels_and_survive_any_name() -> None:
    both = Image.open(io.BytesIO(draw(grid_chart(grid())))).size
    alone = Image.open(io.BytesIO(draw(grid_chart(of(line(HOSTILE), line("_b"))))))
    hostile = [line(HOSTILE, epsilon=value) for value in ("1", "4")]
    one = Image.open(io.BytesIO(draw(grid_chart(of(*hostile))))).size
    assert both[0] == alone.size[0] == one[0] == 1600
    assert both[1] > one[1]
    assert len(alone.convert("RGB").getcolors(2_000_000) or []) > 100


def test_plots_can_be_zoomed() -> None:
    for measurement in (grid(), of(line("a"))):
        for group in grid_panels(measurement):
            for plot in plots(group.panels):
                assert plot.figure["layout"]["xaxis"]["fixedrange"] is False
                assert plot.figure["layout"]["yaxis"]["fixedrange"] is False


def test_plotly_knows_all_that_a_figure_says() -> None:
    panels = [panel for group in grid_panels(grid()) for panel in group.panels]
    points = [Point(0.0, math.nan, hover=("a", "b")), Point(1.0, 2.0, 1.0, 3.0, ("a",))]
    gap = Series("a gap", points, band=True)
    crossed = Panel("crossed", "", "", [gap], levels=[Level(1.5, "start")])
    cross = Cross(1.0, math.nan, "diverged", "#123456", True, ("a line", "its value"))
    panels += [crossed, replace(crossed, rows=["one"], crosses=[cross])]
    for plot in plots(panels):
        assert go.Figure(plot.figure).data
        json.dumps(plot.figure, allow_nan=False)
