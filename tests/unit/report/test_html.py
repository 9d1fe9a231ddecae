"""The pages: self-contained, privacy first, an ε never without its terms, names escaped."""

from __future__ import annotations

import functools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from fedsim.errors import ConfigError
from fedsim.report.comparison import compare
from fedsim.report.comparison_page import render_comparison
from fedsim.report.html import render_run, write_reports
from fedsim.report.schema import RunReport, Utility
from tests.unit.report.report_samples import (
    metrics,
    non_private,
    privacy,
    report,
    scores,
    write_run,
)

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """Collects tags with their attributes, the texts, and the text of each privacy section."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.privacy: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "section" and "privacy" in (dict(attrs).get("class") or "").split():
            self._inside = True
            self.privacy.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "section"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.privacy[-1] += data


def own(text: str) -> str:
    """Return the page without plotly.js, which must stand in it exactly once."""
    assert text.count(get_plotlyjs()) == 1
    return text.replace(get_plotlyjs(), "")


@functools.cache
def pages() -> dict[str, str]:
    run, plain = report(), report("plain", "non-private", non_private())
    return {
        "run": render_run(run, metrics()),
        "non-private": render_run(plain, metrics(private=False)),
        "comparison": render_comparison(
            compare([("uls", run, metrics()), ("plain", plain, metrics(private=False))])
        ),
    }


def hostile() -> RunReport:
    run = report(HOSTILE, HOSTILE, privacy(unit=HOSTILE, assumptions=[HOSTILE], statement=HOSTILE))
    data = run.data.model_copy(update={"source": HOSTILE, "dropped": {HOSTILE: 1}})
    model = run.model.model_copy(update={"name": HOSTILE, "origin": HOSTILE})
    return run.model_copy(update={"data": data, "model": model, "machine": {HOSTILE: HOSTILE}})


@pytest.mark.parametrize("text", pages().values(), ids=pages().keys())
def test_a_page_loads_nothing_and_forbids_every_request(text: str) -> None:
    page = Page(own(text))
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "img", "object", "embed", "base", "form"}
        assert not {"src", "srcset", "href", "action"} & attributes.keys()
    assert not re.search(r"https?://|//cdn|@import|url\(", own(text))
    policies = [a["content"] for t, a in page.tags if a.get("http-equiv")]
    assert len(policies) == 1
    assert policies[0] is not None and "default-src 'none'" in policies[0]
    assert "http" not in policies[0]


@pytest.mark.parametrize("text", pages().values(), ids=pages().keys())
def test_privacy_stands_before_the_plots_and_the_table(text: str) -> None:
    text = own(text)
    body = text.index("<main>")
    first = text.index("privacy", body)
    assert first < text.index('class="plot"', body)
    assert first < text.index("<table", body)


def test_the_privacy_block_holds_an_epsilon_with_all_its_terms() -> None:
    for name, blocks in (("run", 1), ("comparison", 2)):
        found = Page(own(pages()[name])).privacy
        assert len(found) == blocks
        for part in (
            "ε = 8.00",
            "δ = 1e-5",
            "user",
            "add or remove one user",
            "Poisson over users",
            "pld",
            "0.84",
            "denominator = 128",
            "The number of users, 1,426, is public.",
        ):
            assert part in found[0]


def test_the_plot_and_the_table_of_epsilon_carry_its_terms() -> None:
    text = own(pages()["run"])
    terms = "ε at δ = 1e-5; unit: user; neighbouring relation: add or remove one user; "
    figure = re.search(r"<figure(?:(?!</figure>).)*figure-epsilon.*?</figure>", text, re.DOTALL)
    details = re.search(r"<details>.*?</details>", text, re.DOTALL)
    assert figure is not None
    assert details is not None
    assert terms in figure[0]
    assert terms in details[0]


def test_a_run_without_a_guarantee_says_so_and_plots_no_epsilon() -> None:
    text = own(pages()["non-private"])
    (block,) = Page(text).privacy
    assert "No privacy guarantee" in block
    assert "figure-epsilon" not in text
    # Even if a callback logged one: on the way to no guarantee it means nothing.
    logged = own(render_run(report(promise=non_private()), metrics()))
    assert "figure-epsilon" not in logged
    assert '<th class="right">ε</th>' not in logged


@pytest.mark.parametrize("text", pages().values(), ids=pages().keys())
def test_what_the_guarantee_does_not_cover_is_labelled(text: str) -> None:
    for figure in re.findall(r"<figure.*?</figure>", own(text), re.DOTALL):
        covered = "figure-epsilon" in figure
        assert covered != ("not covered by the guarantee" in figure)


def test_figures_are_json_that_holds_the_curves() -> None:
    text = own(pages()["run"])
    found = dict(
        re.findall(r'<script type="application/json" id="figure-(\w+)">(.*?)</script>', text)
    )
    assert list(found) == ["loss", "epsilon", "accuracy", "cohort"]
    training, held_out = json.loads(found["loss"])["data"]
    assert held_out["x"] == [0, 2, 4]
    assert held_out["y"][0] == 3.3
    assert training["x"] == [1, 2, 3, 4]
    assert json.loads(found["epsilon"])["data"][0]["y"][-1] == 8.0
    assert json.loads(found["loss"])["layout"]["shapes"][0]["y0"] == 3.3


def test_hostile_names_stay_text() -> None:
    clean = len(re.findall("<script", own(pages()["run"])))
    text = own(render_run(hostile(), metrics()))
    assert len(re.findall("<script", text)) == clean
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)" in text
    both = own(render_comparison(compare([(HOSTILE, hostile(), metrics())])))
    assert "<script>alert" not in both
    assert "<img" not in both
    # plotly reads HTML in its texts, so a name must reach it escaped.
    loss = re.search(r'id="figure-loss">(.*?)</script>', both)
    assert loss is not None and "<" not in json.loads(loss[1])["data"][0]["name"]


def test_what_was_dropped_and_left_out_is_counted() -> None:
    text = own(pages()["run"])
    assert re.search(r"beyond group_size</dt><dd>4,512<", text)
    assert re.search(r"Non-finite updates left out</dt><dd>1<", text)


@pytest.mark.parametrize(
    ("rank", "pattern", "said"),
    [
        (0, "all", "all"),
        (4, "all", "the adapters alone, of rank 4"),
        (4, "lora_|ln_f", "lora_|ln_f"),
    ],
)
def test_what_is_trained_is_said(rank: int, pattern: str, said: str) -> None:
    changes = {"lora_rank": rank, "trainable_pattern": pattern}
    text = own(render_run(report(model=report().model.model_copy(update=changes)), metrics()))
    assert f"<dt>Which are trained</dt><dd>{said}</dd>" in text


def test_a_diverged_run_without_rounds_still_renders() -> None:
    lost = scores(3.0).model_copy(update={"loss": float("nan"), "perplexity": float("inf")})
    text = own(render_run(report(utility=Utility(initial=lost, final=lost)), ()))
    assert "not a number" in text


def test_the_page_is_there_before_the_report_that_means_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_run(tmp_path / "other", report(), metrics())
    (tmp_path / "metrics.jsonl").write_bytes((written / "metrics.jsonl").read_bytes())

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedsim.report.html.save_report", killed)
        with pytest.raises(KeyboardInterrupt):
            write_reports(tmp_path, report())
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert not (tmp_path / "report.json").exists()
    write_reports(tmp_path, report())
    assert (tmp_path / "report.json").read_bytes() == (written / "report.json").read_bytes()
    (tmp_path / "metrics.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl"):
        write_reports(tmp_path, report())
