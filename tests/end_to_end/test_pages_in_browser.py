"""Every page in a real browser: no request, no error, and the plots tell the reports' numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fedsim.errors import ConfigError
from fedsim.report.comparison import compare
from fedsim.report.comparison_page import render_comparison
from fedsim.report.grid_page import render_grid
from fedsim.report.html import render_run
from tests.helpers.browser import Browser, Page, find_browser, open_browser
from tests.helpers.screenshots import take
from tests.unit.report.grid_samples import grid, line
from tests.unit.report.report_samples import metrics, non_private, report

needs_browser = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium or Chrome on the PATH (apt-get install chromium)"
)


class Case(NamedTuple):
    """A page, and what must be read off one of its plots."""

    render: Callable[[], str]
    figure: str  # of the plot
    series: str  # its name
    x: float
    y: float
    pointed: float  # the height of the pointer at x
    hover: str  # that it must show


def _cases() -> dict[str, Case]:
    run, lines = report(), metrics()
    (last,) = [one.held_out.loss for one in lines[-1:] if one.held_out is not None]
    plain = report("plain", "non-private", non_private())
    measured = grid()
    (spot,) = [one for one in measured.lines if one.name == "els,epsilon=4,budget=128"]
    assert spot.loss is not None
    assert spot.epsilon is not None
    assert spot.budget is not None
    alone = measured.model_copy(update={"lines": (line("only"), line("plain", promised=False))})
    only = alone.lines[0].loss
    assert only is not None
    loss, mean = f"{last:.4g}", f"{spot.loss.mean:.4f}"
    interval = f"95 % interval {spot.loss.low:.4f} to {spot.loss.high:.4f}"

    def both() -> str:
        return render_comparison(compare([("uls", run, lines), ("plain", plain, lines)]))

    return {
        "run": Case(lambda: render_run(run, lines), "loss", "held-out loss", 4, last, last, loss),
        "comparison": Case(both, "loss", "uls", 4, last, last, loss),
        "grid, privacy": Case(
            lambda: render_grid(measured),
            *("epsilon-1", "els", spot.epsilon, spot.loss.mean, spot.loss.mean, mean),
        ),
        "grid, compute": Case(
            lambda: render_grid(measured),
            *("budget-1", "els", spot.budget, spot.loss.mean, spot.loss.high, interval),
        ),
        "lines": Case(
            lambda: render_grid(alone), *("lines", "only", only.mean, 0, 0, f"{only.mean:.4f}")
        ),
    }


CASES = _cases()
ZOOMED = ("grid, privacy", "lines")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as started:
        yield started


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: Browser, tmp_path: Path) -> Page:
    file = tmp_path / "page.html"
    file.write_text(CASES[request.param].render(), encoding="utf-8")
    return browser.open(file)


def plot(figure: str) -> str:
    return f"document.querySelector('[data-figure=\"figure-{figure}\"]')"


def pixel(page: Page, figure: str, x: float, y: float) -> tuple[float, float]:
    """Scroll a plot into view and return where its data (x, y) is on the screen."""
    left, top = page.evaluate(
        f"(() => {{ const gd = {plot(figure)}; gd.scrollIntoView({{block: 'center'}});"
        "const box = gd.getBoundingClientRect(), {xaxis, yaxis} = gd._fullLayout;"
        f"return [box.x + xaxis._offset + xaxis.d2p({x!r}),"
        f" box.y + yaxis._offset + yaxis.d2p({y!r})]; }})()"
    )
    return float(left), float(top)


def until(page: Page, expression: str) -> str:
    """Wait until the expression is not empty: plotly shows what is hovered a little later."""
    value: str = page.evaluate(
        "new Promise((done) => { let left = 600; const look = () => {"
        f"const value = {expression}; if (value || !left--) done(value);"
        " else requestAnimationFrame(look); }; look(); })"
    )
    return value


@needs_browser
@pytest.mark.parametrize(("page", "case"), CASES.items(), ids=CASES.keys(), indirect=["page"])
def test_a_page_asks_for_nothing_and_its_plot_tells_the_number(page: Page, case: Case) -> None:
    points = page.evaluate(
        f"{plot(case.figure)}._fullData.filter((one) => one.name === {json.dumps(case.series)}"
        " && one.fill !== 'toself').flatMap((one) => [...one.x].map((x, i) => [x, one.y[i]]))"
    )
    assert [case.x, case.y] in points
    page.mouse("Moved", *pixel(page, case.figure, case.x, case.pointed))
    shown = until(page, f"{plot(case.figure)}.querySelector('.hoverlayer').textContent")
    assert case.hover in shown
    drawn = page.evaluate("document.querySelectorAll('.plot .main-svg').length")
    assert drawn >= page.evaluate("document.querySelectorAll('.plot').length") > 0
    assert page.requests == []
    assert page.errors == []


@needs_browser
@pytest.mark.parametrize(("page", "case"), [(n, CASES[n]) for n in ZOOMED], indirect=["page"])
def test_a_grid_is_zoomed_by_dragging_and_put_back(page: Page, case: Case) -> None:
    ranges = (
        f"(() => {{ const {{xaxis, yaxis}} = {plot(case.figure)}._fullLayout;"
        " return [...xaxis.range, ...yaxis.range]; })()"
    )
    before = page.evaluate(ranges)
    x, y = pixel(page, case.figure, case.x, case.y)
    page.mouse("Moved", x - 40, y - 30)
    page.mouse("Pressed", x - 40, y - 30, clicks=1)
    for step in (0.2, 0.6, 1.0):
        page.mouse("Moved", x - 40 + 80 * step, y - 30 + 60 * step, held=True)
        page.settle()
    page.mouse("Released", x + 40, y + 30, clicks=1)
    page.settle()
    after = page.evaluate(ranges)
    for axis in (0, 2):
        assert abs(after[axis + 1] - after[axis]) < 0.7 * abs(before[axis + 1] - before[axis])
    # Two clicks are a double one however busy this machine is.
    page.evaluate(
        f"(() => {{ const gd = {plot(case.figure)}; gd._mouseDownTime = 0;"
        " gd._context.doubleClickDelay = 600000; })()"
    )
    for clicks in (1, 2):
        page.mouse("Pressed", x, y, clicks=clicks)
        page.mouse("Released", x, y, clicks=clicks)
    page.settle()
    assert page.evaluate(ranges) == pytest.approx(before)
    assert page.errors == []


@needs_browser
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_telephone_shows_all_of_a_page(case: Case, browser: Browser, tmp_path: Path) -> None:
    """Nothing is wider than 420 pixels, table cells and plots included, and cells have heads."""
    file = tmp_path / "page.html"
    file.write_text(case.render(), encoding="utf-8")
    narrow = browser.open(file, width=420)
    widest = "Math.max(...[...document.querySelectorAll('td, th, .plot, .card, svg')]"
    assert narrow.evaluate(f"{widest}.map((one) => one.getBoundingClientRect().right))") <= 420
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 420
    cells = "[...document.querySelectorAll('td:not(:first-child)')]"
    assert narrow.evaluate(f"{cells}.every((cell) => cell.dataset.head)")


@needs_browser
def test_what_the_tests_above_look_for_is_seen(browser: Browser, tmp_path: Path) -> None:
    """Or a page could ask for what it likes and pass."""
    file = tmp_path / "bad.html"
    file.write_text(
        "<!doctype html><img src='http://127.0.0.1:9/x.png'><script>console.error('no');"
        "</script><script>throw new Error('thrown')</script>"
    )
    bad = browser.open(file)
    assert bad.requests == ["http://127.0.0.1:9/x.png"]
    assert any("thrown" in error for error in bad.errors)
    assert any("'no'" in error for error in bad.errors)


@needs_browser
def test_a_screenshot_is_a_png_of_what_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text("<!doctype html><div id=a style='width:300px;height:200px'>a</div>")
    take(file, tmp_path / "a.png", selector="#a")
    png = (tmp_path / "a.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (600, 400)
    with pytest.raises(ConfigError, match="nothing of"):
        take(file, tmp_path / "b.png", selector="#b")
    assert not (tmp_path / "b.png").exists()


def test_no_page_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        take(tmp_path / "none.html", tmp_path / "a.png")
