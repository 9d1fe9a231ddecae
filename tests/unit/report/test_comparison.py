"""Comparisons of single runs: the value, its table, its picture and the folder."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path

import pytest
from PIL import Image

from fedsim.errors import ConfigError
from fedsim.report.drawing import FORMS, draw
from fedsim.report.grid_page import grid_chart, render_grid
from fedsim.report.grid_result import GridResult, grid_table
from fedsim.report.schema import Utility
from fedsim.report.wording import outcome_text
from fedsim.sweep.compare import compare
from tests.unit.report.grid_samples import compared
from tests.unit.report.report_samples import (
    metrics,
    non_private,
    printed,
    privacy,
    report,
    scores,
    write_run,
)

ELS: dict[str, object] = {
    "sampler": "Poisson over examples",
    "accountant": "mixture",
    "units_per_user": 8,
}
HOSTILE = "a|b\n$\\frac{x <script>[red] `"


def three(**changes: object) -> GridResult:
    return compared(
        ("uls", report(), metrics()),
        ("els", report(name="els", promise=privacy(**(ELS | changes))), metrics()),
        ("plain", report(name="non-private", promise=non_private()), metrics(private=False)),
    )


def lines_of(comparison: GridResult, width: int = 200) -> str:
    return printed(grid_table(comparison), width)


def test_the_table_has_the_reports_numbers_and_the_csv_has_them_at_full_precision() -> None:
    assert GridResult.model_validate_json(three().model_dump_json()) == three()
    table = grid_table(three())
    uls, _, plain = table.rows
    scored = ("2.400", "11.02", "31.0 %", "3.300")
    assert uls == ["uls", *scored, "8.00", "0.840", "1,024", "3 min 32 s"]
    assert (plain[0], *plain[5:7]) == ("plain", "none", "–")
    run, els, _ = csv.DictReader(io.StringIO(table.csv()))
    assert float(run["loss_mean"]) == 2.4
    assert (run["epsilon"], run["delta"]) == ("7.9964", "1e-05")
    assert run["relation"] == "add or remove one user"
    assert (els["strategy"], els["accountant"], els["start"]) == ("els", "mixture", "3.3")


def test_earlier_training_of_the_start_stands_beside_the_epsilon() -> None:
    after = report()
    earlier = after.privacy.model_copy(update={"earlier_training": ("'x' has a promise.",)})
    after = after.model_copy(update={"privacy": earlier})
    plain = report(promise=non_private())
    shown = " ".join(lines_of(compared(("after", after, ()), ("plain", plain, ()))).split())
    assert "; not counted: earlier training of the starting model. 'x' has" in shown
    assert "'x' has a promise." in outcome_text(Path("run"), after)


def test_every_run_has_the_terms_of_its_epsilon() -> None:
    for text in (grid_table(three()).markdown(), lines_of(three())):
        for terms in (
            "uls: simulated ε at δ = 1e-5; unit: user; neighbouring relation: add or remove one "
            "user; sampler: Poisson over users; accountant: pld",
            "sampler: Poisson over examples; accountant: mixture",
            "plain: no privacy guarantee",
            "computed on private text, not protected by the privacy guarantee",
        ):
            assert terms in " ".join(text.split())


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"delta": 1e-6},
        {"unit": "example"},
        {"relation": "replace one user"},
        {"hypothetical": True},
        {"noise": "secure"},
    ],
)
def test_other_terms_are_noted(change: dict[str, object]) -> None:
    said = "their ε are not directly comparable" in " ".join(three(**change).notes)
    assert said == bool(change)


def test_other_held_out_text_and_other_budgets_are_noted() -> None:
    other = report()
    cost = other.cost.model_copy(update={"expected_gradients": 7.0})
    data = other.data.model_copy(update={"source": "elsewhere"})
    changed = other.model_copy(update={"cost": cost, "data": data})
    notes = compared(("a", report(), ()), ("b", changed, ())).notes
    assert any("held-out text" in note for note in notes)
    assert any("gradient budgets" in note for note in notes)


def test_a_run_that_ended_early_is_marked(tmp_path: Path) -> None:
    cost = report().cost.model_copy(update={"rounds": 15, "planned_rounds": 30})
    early, lost = (report(cost=cost, diverged=why) for why in (None, "round 15"))
    whole = report(cost=cost.model_copy(update={"rounds": 30}))
    runs = zip("abcd", (early, whole, lost, report()), strict=True)
    folders = [
        write_run(tmp_path / name, run.model_copy(update={"title": name}), ()) for name, run in runs
    ]
    comparison = compare(folders, tmp_path / "out")
    note = "Stopped early: a after 15 of 30 rounds."
    assert [one for one in comparison.notes if "early" in one] == [note]
    assert any("Each ε is for one run alone." in one for one in comparison.notes)
    table = grid_table(comparison)
    for shown in (table.markdown(), lines_of(comparison), render_grid(comparison)):
        assert note in " ".join(shown.split())
    assert table.rows[0][1] == "2.400"


def test_a_markdown_cell_cannot_be_left_and_a_csv_keeps_any_label() -> None:
    table = grid_table(compared((HOSTILE, report(), metrics())))
    lines = table.markdown().split("\n\n")[0].split("\n")
    assert len(lines) == 3
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(table.heads) + 1}
    assert "<script" not in table.markdown()
    (run,) = csv.DictReader(io.StringIO(table.csv()))
    assert run["name"] == HOSTILE


def test_80_columns_have_room_for_names_and_numbers() -> None:
    """A long name goes on in the next line; no number does, and nothing is cut off."""
    names = ("[red]demo", "demo-non-private", "a-name-of-thirty-letters-with-uls")
    narrow = lines_of(compared(*((name, report(), metrics()) for name in names)), width=80)
    for name in (names[0], names[1], names[2][:17]):
        (line,) = (line for line in narrow.splitlines() if line.strip().startswith(f"{name} "))
        assert line.endswith("3 min 32 s ")
        assert " 1,024 " in line and " 8.00 " in line
    assert max(map(len, narrow.splitlines())) <= 80 and "…" not in narrow


def test_the_picture_holds_every_curve_and_every_loss_with_its_epsilon() -> None:
    ((loss, finals),) = grid_chart(three()).rows
    for series, (label, run) in zip(loss.series, three().runs.items(), strict=True):
        assert series.name == label
        assert [(p.at, p.value) for p in series.points] == [
            (line.round, line.held_out.loss) for line in run.evaluated if line.held_out
        ]
    assert [level.text for level in loss.levels] == ["start 3.30"]
    lost = scores(3.0).model_copy(update={"loss": math.nan, "perplexity": math.inf})
    diverged = report(utility=Utility(initial=lost, final=lost))
    assert draw(grid_chart(compared((HOSTILE, diverged, ()))), "svg")
    assert finals.rows == ["uls · 2.40 · ε = 8.00", "els · 2.40 · ε = 8.00", "plain · 2.40"]
    assert [one.points[0].value for one in finals.series] == [2.4] * 3


def test_the_folder_holds_every_form_and_equal_titles_take_their_folders(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [write_run(tmp_path / name / "winner", report("same"), metrics()) for name in ("a", "b")]
    out = tmp_path / "out"
    out.mkdir()
    (out / "comparison.json").touch()
    with caplog.at_level("INFO"):
        comparison = compare(runs, out)
    assert [*comparison.runs] == [str(run) for run in runs]
    assert "replaces an earlier comparison" in caplog.text
    forms = ("csv", "html", "json", "md", "tex", *FORMS)
    names = {"comparison-caption.tex", *(f"comparison.{form}" for form in forms)}
    assert {path.name for path in out.iterdir()} == names
    assert json.loads((out / "comparison.json").read_text())["lines"][0]["name"] == str(runs[0])


def test_a_broken_run_leaves_no_folder(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good", report(), metrics())
    (tmp_path / "bad").mkdir()
    with pytest.raises(ConfigError, match="is no finished run"):
        compare([good, tmp_path / "bad"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_paper_has_a_tabular_and_one_caption_with_the_terms_of_every_epsilon(
    tmp_path: Path,
) -> None:
    """No LaTeX runs here: its structure, and that nothing of a name is a command."""
    names = ("[red]*a & b_c", HOSTILE)
    runs = [
        write_run(tmp_path / str(number), report(name), metrics())
        for number, name in enumerate(names)
    ]
    out = tmp_path / "out"
    compare(runs, out)
    table = (out / "comparison.tex").read_text(encoding="utf-8")
    begin, top, head, middle, *rows, bottom, end = table.splitlines()
    assert (begin, end) == (r"\begin{tabular}{lrrrrrrrr}", r"\end{tabular}")
    assert (top, middle, bottom) == (r"\toprule", r"\midrule", r"\bottomrule")
    assert head.startswith(
        r"setting & loss & ppl & top-1 & start & $\varepsilon$ & $\sigma$ & grads"
    )
    assert len(rows) == 2
    assert rows[0].startswith(
        r"{[}red]{*}a \& b\_c & 2.400 & 11.02 & 31.0 \% & 3.300 & 8.00 & 0.840 &"
    )
    hostile = r"a\textbar{}b \$\textbackslash{}frac\{x \textless{}script\textgreater{}{[}red] ` &"
    assert rows[1].startswith(hostile)
    for row in (head, *rows):
        assert len(re.findall(r"(?<!\\)&", row)) == 8 and row.endswith(r" \\")
    caption = (out / "comparison-caption.tex").read_text(encoding="utf-8")
    terms = (
        r"simulated $\varepsilon$ at $\delta$ = 1e-5; unit: user; neighbouring relation: add or "
        "remove one user; sampler: Poisson over users; accountant: pld; "
    )
    assert caption.count(terms) == 1 and caption.startswith(r"{[}red]{*}a \& b\_c; a\textbar{}b")
    for text in (table, caption):
        assert not set(text) & set("εδσ±−≤≥∞…")
        assert not re.findall(r"(?<!\\)[%#]", text)


def test_a_picture_for_a_paper_has_no_notes(tmp_path: Path) -> None:
    """Its caption file has them; the PNG, which goes alone, has them below it."""
    compare([write_run(tmp_path / "run", report(), metrics())], tmp_path)
    svg = (tmp_path / "comparison.svg").read_text(encoding="utf-8")
    assert "Held-out loss" in svg and "accountant" not in svg
    noted = grid_chart(compare([tmp_path / "run"], tmp_path))
    pngs = ((tmp_path / "comparison.png").read_bytes(), draw(noted), draw(noted._replace(notes=())))
    written, with_notes, without = (Image.open(io.BytesIO(png)).size[1] for png in pngs)
    assert written == with_notes > without
