"""Every page in a real browser: no request, no error, and tooltips at their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedsim.errors import ConfigError
from fedsim.report.grid_page import render_grid
from fedsim.report.html import render_run
from tests.helpers.browser import Browser, find_browser, open_browser
from tests.helpers.screenshots import take
from tests.unit.report.grid_samples import compared, grid
from tests.unit.report.report_samples import metrics, non_private, report

needs_browser = pytest.mark.skipif(
    find_browser() is None, reason="no Chromium or Chrome on the PATH (apt-get install chromium)"
)


PAGES: dict[str, Callable[[], str]] = {
    "run": lambda: render_run(report(), metrics()),
    "comparison": lambda: render_grid(
        compared(("uls", report(), metrics()), ("plain", report(promise=non_private()), ()))
    ),
    "grid": lambda: render_grid(grid()),
}
DARK = [{"name": "prefers-color-scheme", "value": "dark"}]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as started:
        yield started


@needs_browser
@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_for_nothing_and_fits_every_screen(
    name: str, browser: Browser, tmp_path: Path
) -> None:
    """On a telephone nothing is wider than 420 pixels, and cells have heads."""
    file = tmp_path / "page.html"
    file.write_text(PAGES[name](), encoding="utf-8")
    page, narrow = browser.open(file), browser.open(file, width=420)
    for opened in (page, narrow):
        assert opened.requests == [] and opened.errors == []
    widest = "Math.max(...[...document.querySelectorAll('td, th, .plot, .card, svg')]"
    assert narrow.evaluate(f"{widest}.map((one) => one.getBoundingClientRect().right))") <= 420
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 420
    cells = "[...document.querySelectorAll('td:not(:first-child)')]"
    assert narrow.evaluate(f"{cells}.every((cell) => cell.dataset.head)")


@needs_browser
@pytest.mark.parametrize("name", PAGES)
def test_a_pointer_finds_every_tooltip_in_its_plot(
    name: str, browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGES[name](), encoding="utf-8")
    page = browser.open(file)
    found = page.evaluate(
        "[...document.querySelectorAll('figure')].map((figure) => {"
        " figure.scrollIntoView({block: 'center'});"
        " const svg = figure.querySelector('svg').getBoundingClientRect();"
        " return [...figure.querySelectorAll('.tip')].map((tip) => {"
        " const at = tip.getBoundingClientRect();"
        " const [x, y] = [at.x + at.width / 2, at.y + at.height / 2];"
        " const inside = svg.x <= x && x <= svg.right && svg.y <= y && y <= svg.bottom;"
        " return inside && document.elementFromPoint(x, y).classList.contains('tip'); }); })"
    )
    assert all(found) and all(tip for figure in found for tip in figure)


@needs_browser
def test_plots_follow_the_readers_dark_theme(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGES["run"](), encoding="utf-8")
    page = browser.open(file)
    colour = "getComputedStyle(document.querySelector('.plot text')).fill"
    light = page.evaluate(colour)
    page.call("Emulation.setEmulatedMedia", features=DARK)
    assert page.evaluate(colour) != light


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
