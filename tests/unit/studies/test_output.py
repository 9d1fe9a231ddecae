"""Tables, pages and figures of studies."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedsim.experiments.studies.common.output import Result, Study, Table, panels, study
from fedsim.experiments.studies.common.series import draw
from fedsim.report.drawing import FORMS
from tests.unit.report.grid_samples import grid

RECORDS = [{"epsilon": 0.5, "users": 1_234}, {"epsilon": 8.0, "users": 5}]


def test_a_table_of_records() -> None:
    columns = {"ε": ("epsilon", "g"), "users": ("users", ",d")}
    assert Table.of(RECORDS, columns).markdown().splitlines() == [
        "| ε | users |",
        "| ---: | ---: |",
        "| 0.5 | 1,234 |",
        "| 8 | 5 |",
    ]


def test_a_line_of_which_a_run_diverged_or_failed_has_a_cross() -> None:
    figure = draw(grid(), x="budget", series="source", panels="epsilon", title="t")
    crosses = [one for pane in figure.axes for one in pane.lines if one.get_marker() == "x"]
    assert len(crosses) == 3  # one failed, one diverged, one in part
    texts = [" ".join(text.get_text().split()) for text in figure.texts]
    (note,) = (text for text in texts if "a seed diverged" in text)
    assert "means over" in note


@pytest.mark.parametrize("own", [{}, {"terms": "of its row"}, {"relation": "add-or-remove-one"}])
def test_records_carry_the_terms_of_an_epsilon_once(own: dict[str, str], tmp_path: Path) -> None:
    terms = "δ = 0.1; unit: user; neighbouring relation: add-or-remove-one user."
    records = [{**RECORDS[0], **own}]

    @study("small", "A small study", None)
    def run(quick: bool) -> Result:
        figure, _ = panels((2.0, 2.0), "t", "δ", [[""]], x="", y="")
        return Result(["d = 3.", terms], Table(["ε"], [["1"]]), records, figure)

    run(tmp_path, quick=True)
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    expected = own or {"terms": terms}
    assert row == {"epsilon": "0.5", "users": "1234", **expected}


@pytest.mark.parametrize("quick", [True, False])
def test_the_page_of_a_quick_run_says_that_its_text_is_of_a_whole_one(quick: bool) -> None:
    figure, _ = panels((2.0, 2.0), "t", "δ", [[""]], x="", y="")
    result = Result(["ε at δ = 0.1."], Table(["ε"], [["1"]]), RECORDS, figure)
    page = Study("small", "A small study", "56 rounds.", lambda _: result).page(result, quick=quick)
    assert ("may be smaller than the text says" in page) == quick


@pytest.mark.parametrize("notes", [(), ("2 of 3 rows.",)])
def test_a_study_writes_what_its_function_returns(notes: tuple[str, ...], tmp_path: Path) -> None:
    @study("small", "A small study", "Of a paper.\n\nIts table.\n")
    def run(quick: bool) -> Result:
        figure, _ = panels((2.0, 2.0), "t", "δ", [[""]], x="", y="")
        return Result(["ε at δ = 0.1."], Table(["ε"], [["1"]]), RECORDS, figure, notes)

    assert isinstance(run, Study)
    run(tmp_path, quick=True)
    assert (tmp_path / "table.csv").read_text() == "epsilon,users\n0.5,1234\n8.0,5\n"
    page = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert page.startswith("# A small study\n\nOf a paper.\n\nIts table.\n\n![the picture]")
    assert "- ε at δ = 0.1.\n- Made by `fedsim study small --quick`." in page
    assert ("## Notes\n\n- 2 of 3 rows." in page) == bool(notes)
    assert {path.name for path in tmp_path.iterdir()} == {
        "table.csv",
        "table.md",
        *(f"picture.{form}" for form in FORMS),
    }
