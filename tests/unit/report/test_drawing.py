"""Drawings: every value has a tooltip at its place, any text is drawn, any number survives."""

from __future__ import annotations

import io
import math
import re
from xml.etree import ElementTree

import pytest
from PIL import Image

from fedsim.report.drawing import FORMS, draw, page_svg, pictures
from fedsim.report.figures import Axis, Chart, Level, Panel, Point, Series, curve, in_rows
from fedsim.report.grid_page import grid_chart
from fedsim.report.style import shorten
from tests.unit.report.grid_samples import compared, grid
from tests.unit.report.report_samples import metrics, report

NAME = "_$\\frac{x <b> &amp; σ"


def tips(svg: str) -> list[tuple[float, float, str]]:
    found = re.findall(r'cx="(.*?)" cy="(.*?)" r="4"><title>(.*?)</title>', svg, re.DOTALL)
    return [(float(x), float(y), text) for x, y, text in found]


def panel(*points: Point, **changes: object) -> Panel:
    values: dict[str, object] = {
        "key": "one",
        "title": "title",
        "caption": "",
        "series": [Series("a", points, marks=True, band=True)],
    }
    return Panel(**(values | changes))  # type: ignore[arg-type]


def test_every_finite_value_has_a_tooltip_at_its_place() -> None:
    points = [Point(0, 1.0), Point(1, math.nan), Point(2, 3.0, 2.5, 3.5), Point(4, 5.0)]
    named = Series(NAME, points, marks=True, band=True)
    (x0, y0, first), (x2, y2, second), (x4, y4, _) = tips(page_svg(panel(series=[named])))
    name = NAME.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert first == f"{name}\nround: 0\ntitle: 1"
    assert second == f"{name}\nround: 2\ntitle: 3\ninterval: 2.5 to 3.5"
    assert x2 - x0 == pytest.approx(x4 - x2, abs=0.2)
    assert y0 - y2 == pytest.approx(y2 - y4, abs=0.2)  # up in a plot is less in SVG


def test_logarithmic_axes_rows_and_levels() -> None:
    log = Axis("n", log=True, limits=(1, 100), ticks=(1, 10, 100))
    points = [Point(1, 1.0), Point(10, 2.0), Point(100, 3.0)]
    svg = page_svg(panel(*points, x=log, levels=[Level(2.2, "start")]))
    (left, *_), (middle, *_), (right, *_) = tips(svg)
    assert middle == pytest.approx((left + right) / 2, abs=0.2)
    assert ">start</text>" in svg
    cut = panel(*points, x=log, y=Axis(limits=(0, 2.5)))
    assert len(tips(page_svg(cut))) == 2  # the third point is above the axes
    (low, top, _), (high, bottom, _) = tips(
        page_svg(panel(*points[:1], Point(1, 9.0), rows=[NAME]))
    )
    assert low < high and top == bottom
    plain = page_svg(panel(*points, x=Axis(log=True), y=Axis(log=True)))
    assert ">100</text>" in plain and "$" not in plain


def test_a_page_figure_takes_the_pages_colours_and_needs_nothing_else() -> None:
    two = [curve(NAME, [(0, 1.0), (1, 2.0)]), curve("b", [(0, None), (1, math.inf)])]
    svg = page_svg(panel(series=two))
    ElementTree.fromstring(svg.replace("xlink:href", "href"))  # noqa: S314 - our own
    for name in ("ink", "muted", "rule"):
        assert f"var(--{name})" in svg
    assert "http" not in svg and "metadata" not in svg and "<b>" not in svg
    assert svg == page_svg(panel(series=two))


def test_pictures_grow_with_their_panels_and_survive_any_name() -> None:
    charts = {
        "run": grid_chart(compared((NAME, report(), metrics()))),
        "grid": grid_chart(grid()),
    }
    sizes = {name: Image.open(io.BytesIO(draw(chart))).size for name, chart in charts.items()}
    assert {width for width, _ in sizes.values()} == {1600}
    assert sizes["run"][1] < sizes["grid"][1]
    empty = Chart([[panel(series=[])]], ["a note"])
    found = pictures("p", empty)
    assert [*found] == [f"p.{form}" for form in FORMS]
    heads = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    assert all(found[f"p.{form}"].startswith(heads[form]) for form in FORMS)
    assert found == pictures("p", empty)


@pytest.mark.parametrize(("count", "rows"), [(1, [1]), (3, [3]), (4, [2, 2]), (7, [3, 3, 1])])
def test_panels_are_in_rows(count: int, rows: list[int]) -> None:
    assert [len(row) for row in in_rows([panel()] * count)] == rows


def test_shorten_cuts_with_an_ellipsis() -> None:
    assert shorten("a\nb", 5) == "a b"
    assert shorten("abcdefgh", 5) == "abcd…"
