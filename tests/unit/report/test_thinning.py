"""A run of ten thousand rounds has a page that a browser opens, with its first and last rounds."""

from __future__ import annotations

from itertools import pairwise

from fedsim.report.html import MOST, render_run, shown
from tests.unit.report.report_samples import metrics, report


def test_short_runs_are_shown_whole() -> None:
    lines = metrics(1500, every=3)
    assert shown(lines) == lines
    assert "The plots leave" not in render_run(report(), lines)


def test_long_runs_are_thinned_evenly() -> None:
    for every in (1, 10):
        lines = metrics(10_000, every=every)
        some = shown(lines)
        rounds = [line.round for line in some]
        assert rounds == sorted(set(rounds))
        assert (rounds[0], rounds[-1]) == (0, 10_000)
        scored = [line.round for line in some if line.held_out is not None]
        assert len(scored) == MOST
        assert max(b - a for a, b in pairwise(scored)) <= 2 * every * 10


def test_a_long_runs_page_stays_light_and_says_what_it_leaves_out() -> None:
    short = len(render_run(report(), metrics(4)))
    page = render_run(report(), metrics(10_000, every=1))
    assert len(page) - short < 500_000
    assert page.count("<td") > 3 * MOST
    assert "The plots leave 9,001 rounds out, evenly; metrics.jsonl has all." in page
    assert "1,000 of 10,001 evaluated rounds; metrics.jsonl has all." in page
