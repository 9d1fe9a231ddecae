"""Comparisons: the value, its tables, its picture and the folder."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedsim.errors import ConfigError
from fedsim.report.comparison import (
    HEADS,
    Comparison,
    cells,
    compare,
    comparison_table,
    terminal_table,
    unique_labels,
)
from fedsim.report.comparison_page import comparison_chart, render_comparison
from fedsim.report.folder import write_comparison
from fedsim.report.pictures import draw
from fedsim.report.schema import Utility
from fedsim.report.style import shorten
from fedsim.report.wording import outcome_text
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


def three(**changes: object) -> Comparison:
    return compare(
        [
            ("uls", report(), metrics()),
            ("els", report(name="els", promise=privacy(**(ELS | changes))), metrics()),
            ("plain", report(name="non-private", promise=non_private()), metrics(private=False)),
        ]
    )


def lines_of(comparison: Comparison, width: int = 200) -> str:
    return printed(terminal_table(comparison), width)


def test_rows_hold_the_reports_numbers() -> None:
    start, uls, els, plain = three().rows
    assert (start.kind, start.loss, start.epsilon) == ("start", 3.3, None)
    assert start.label == "starting point"
    assert (uls.label, uls.loss, uls.epsilon, uls.delta) == ("uls", 2.4, 7.9964, 1e-5)
    assert (uls.gradients, uls.seconds, uls.noise_multiplier) == (98_765, 212.5, 0.84)
    assert (els.strategy, els.accountant) == ("els", "mixture")
    assert plain.epsilon is None
    assert cells(uls)[2:] == [
        *("2.400", "11.02", "31.0 %", "8.00", "1e-5", "0.840", "user", "98,765", "3 min 32 s")
    ]
    assert cells(plain)[5:9] == ["none", "–", "–", "–"]


def test_each_distinct_start_has_one_row_that_names_its_runs() -> None:
    def labels(*losses: float) -> list[str]:
        runs = [(f"r{i}", report(initial=scores(x)), metrics()) for i, x in enumerate(losses)]
        return [row.label for row in compare(runs).rows if row.kind == "start"]

    assert labels(3.3, 3.3 * (1 + 1e-9), 3.3) == ["starting point"]
    assert labels(3.3, 3.1, 3.3) == ["starting point of r0, r2", "starting point of r1"]


def test_a_start_that_was_trained_before_is_said_beside_the_epsilon() -> None:
    """And that runs add up, also where one of them has no finite ε to add."""
    after = report()
    earlier = after.privacy.model_copy(update={"earlier_training": ("'x' has a promise.",)})
    after = after.model_copy(update={"privacy": earlier})
    plain = report(promise=non_private())
    shown = " ".join(lines_of(compare([("after", after, ()), ("plain", plain, ())])).split())
    assert "seed; not counted: what the starting point was trained on before. 'x' has" in shown
    assert "Each ε is of one run by itself." in shown
    assert "'x' has a promise." in outcome_text(Path("run"), after)


def test_every_run_has_the_terms_of_its_epsilon() -> None:
    for text in (comparison_table(three()).markdown(), lines_of(three())):
        for terms in (
            "uls: ε at δ = 1e-5; unit: user; neighbouring relation: add or remove one user; "
            "sampler: Poisson over users; accountant: pld",
            "sampler: Poisson over examples; accountant: mixture",
            "plain: no privacy guarantee",
            "computed on private text, not covered by the guarantee",
        ):
            assert terms in " ".join(text.split())


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({}, None),
        ({"delta": 1e-6}, "different δ"),
        ({"unit": "example"}, "different units"),
        ({"relation": "replace one user"}, "different neighbouring relations"),
        ({"hypothetical": True}, "mix ε with hypothetical ones"),
        ({"noise": "secure"}, "secret noise and seeded noise"),
    ],
)
def test_what_spoils_a_comparison_is_noted(change: dict[str, object], note: str | None) -> None:
    notes = three(**change).notes
    assert (notes == ()) if note is None else (len(notes) == 1 and note in notes[0])


def test_different_held_out_text_and_budgets_are_noted() -> None:
    other = report()
    cost = other.cost.model_copy(update={"expected_gradients": 7.0})
    data = other.data.model_copy(update={"source": "elsewhere"})
    notes = compare(
        [("a", report(), ()), ("b", other.model_copy(update={"cost": cost, "data": data}), ())]
    ).notes
    assert any("held-out text" in note for note in notes)
    assert any("gradient budgets" in note for note in notes)


def test_texts_of_as_many_tokens_are_told_apart_by_the_start() -> None:
    """Of one model: what another one makes of a text says nothing about the text."""
    one, other = report(initial=scores(3.3)), report(initial=scores(3.4))
    another = other.model_copy(update={"model": other.model.model_copy(update={"name": "other"})})
    for second, said in ((one, False), (other, True), (another, False)):
        notes = compare([("a", one, ()), ("b", second, ())]).notes
        assert any("held-out text" in note for note in notes) is said


def test_a_run_that_ended_early_is_marked() -> None:
    cost = report().cost.model_copy(update={"rounds": 15, "planned_rounds": 30})
    early, lost = (report(cost=cost, diverged=why) for why in (None, "round 15"))
    whole = report(cost=cost.model_copy(update={"rounds": 30}))
    comparison = compare([("a", early, ()), ("b", whole, ()), ("c", lost, ()), ("d", report(), ())])
    note = "Stopped early: a after 15 of 30 rounds."
    assert [one for one in comparison.notes if "early" in one] == [note]
    table = comparison_table(comparison)
    for shown in (table.markdown(), lines_of(comparison), render_comparison(comparison)):
        assert note in " ".join(shown.split())
    _, row, *_ = csv.DictReader(io.StringIO(table.csv()))
    assert (row["rounds"], row["planned_rounds"]) == ("15", "30")


def test_csv_keeps_full_precision_and_any_label() -> None:
    comparison = compare([(HOSTILE, report(), metrics())])
    start, run = csv.DictReader(io.StringIO(comparison_table(comparison).csv()))
    assert run["label"] == HOSTILE
    assert float(run["perplexity"]) == math.exp(2.4)
    assert (run["epsilon"], run["delta"], run["relation"]) == (
        "7.9964",
        "1e-05",
        "add or remove one user",
    )
    assert start["epsilon"] == ""


def test_json_reads_back_as_the_same_comparison() -> None:
    comparison = three()
    assert Comparison.model_validate_json(comparison.model_dump_json()) == comparison


def test_a_markdown_cell_cannot_be_left() -> None:
    text = comparison_table(compare([(HOSTILE, report(), metrics())])).markdown()
    table = text.split("\n\n")[0].split("\n")
    assert len(table) == 4
    for line in table:
        assert line.replace("\\|", "").count("|") == len(HEADS) + 1
    assert "<script" not in text


def test_the_terminal_table_shows_labels_as_they_are_and_loses_no_digit() -> None:
    comparison = compare([("[red]x", report(), metrics())])
    wide = lines_of(comparison)
    assert "[red]x (uls)" in wide
    narrow = lines_of(comparison, width=80)
    assert "…" not in narrow
    for number in ("2.400", "8.00", "1e-5", "98,765"):
        assert number in narrow


def test_80_columns_have_room_for_names_and_numbers() -> None:
    """A long name goes on in the next line; no number does, and nothing is cut off."""
    names = ("demo-uls", "demo-non-private", "a-name-of-thirty-letters-with-uls")
    narrow = lines_of(compare([(name, report(), metrics()) for name in names]), width=80)
    for name in (names[0], f"{names[1]} (uls)", names[2][:23]):
        (line,) = (line for line in narrow.splitlines() if line.strip().startswith(f"{name} "))
        assert line.endswith("3 min 32 s ")
        assert " 98,765 " in line
    assert any(line.strip() == names[2][23:] for line in narrow.splitlines())
    assert "knows the seed" in " ".join(narrow.split())
    assert max(map(len, narrow.splitlines())) <= 80


def test_no_runs_and_equal_labels_are_config_errors() -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        compare([])
    with pytest.raises(ConfigError, match="label"):
        compare([("a", report(), ()), ("a", report(), ())])


@given(st.lists(st.sampled_from(["a", "b", "a (2)", "a (3)", "a (2) (2)"]), max_size=8))
def test_unique_labels_are_unique_and_the_first_of_each_name_keeps_it(names: list[str]) -> None:
    labels = unique_labels(names)
    assert len(set(labels)) == len(names)
    for name in set(names):
        assert labels[names.index(name)] == name


def test_shorten_cuts_with_an_ellipsis() -> None:
    assert shorten("a\nb", 5) == "a b"
    assert shorten("abcdefgh", 5) == "abcd…"


def test_the_picture_is_1600_by_700_and_grows_with_its_runs() -> None:
    few = Image.open(io.BytesIO(draw(comparison_chart(three()))))
    many = compare([(f"run {i}", report(), metrics()) for i in range(9)])
    assert few.size == (1600, 700)
    assert len(few.convert("RGB").getcolors(1_600 * 700) or []) > 100
    width, height = Image.open(io.BytesIO(draw(comparison_chart(many)))).size
    assert (width, height > 700) == (1600, True)


def test_the_picture_holds_every_curve_and_every_perplexity_with_its_epsilon() -> None:
    ((loss, perplexity),) = comparison_chart(three()).rows
    for series, run in zip(loss.series, three().runs, strict=True):
        assert series.name == run.label
        assert [(p.at, p.value) for p in series.points] == [(p.round, p.loss) for p in run.curve]
    assert [level.text for level in loss.levels] == ["start 3.30"]
    assert perplexity.rows == [
        "uls · 11.0 · ε = 8.00",
        "els · 11.0 · ε = 8.00",
        "plain · 11.0 · no guarantee",
    ]
    assert [one.points[0].value for one in perplexity.series] == [math.exp(2.4)] * 3


def test_the_picture_survives_divergence_empty_curves_and_hostile_labels() -> None:
    lost = scores(3.0).model_copy(update={"loss": math.nan, "perplexity": math.inf})
    utility = Utility(initial=lost, final=lost)
    comparison = compare([(HOSTILE, report(utility=utility), ()), ("b", report(), ())])
    assert Image.open(io.BytesIO(draw(comparison_chart(comparison)))).size == (1600, 700)
    alone = compare([("only", report(utility=utility), ())])
    assert Image.open(io.BytesIO(draw(comparison_chart(alone)))).size == (1600, 700)


def test_the_folder_holds_five_forms_and_equal_titles_are_numbered(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, report("same"), metrics()) for name in ("a", "b")]
    comparison = write_comparison(runs, tmp_path / "out")
    assert [run.label for run in comparison.runs] == ["same", "same (2)"]
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        f"comparison.{kind}" for kind in ("csv", "html", "json", "md", "png")
    ]
    assert json.loads((out / "comparison.json").read_text())["rows"][1]["label"] == "same"
    assert Image.open(io.BytesIO((out / "comparison.png").read_bytes())).size == (1600, 700)


def test_winners_of_searches_are_called_after_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [
        write_run(tmp_path / name / "winner", report("winner"), metrics()) for name in ("a", "b")
    ]
    with caplog.at_level("INFO"):
        comparison = write_comparison(runs, tmp_path / "out")
        assert [run.label for run in comparison.runs] == ["a/winner", "b/winner"]
        assert "former" not in caplog.text
        write_comparison(runs, tmp_path / "out")
    assert "in the place of a former comparison" in caplog.text


def test_a_broken_run_leaves_no_folder(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good", report(), metrics())
    with pytest.raises(ConfigError, match="no such folder"):
        write_comparison([good, tmp_path / "bad"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
