"""The pages: self-contained, privacy first, an ε never without its terms, names escaped."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import pytest

from fedsim.errors import ConfigError
from fedsim.report.differences import differences
from fedsim.report.drawing import MOST
from fedsim.report.grid_page import render_grid
from fedsim.report.grid_result import CellResult
from fedsim.report.html import render_run, write_reports
from fedsim.report.schema import RunReport, Utility
from tests.unit.report.grid_samples import compared, grid, line
from tests.unit.report.report_samples import (
    metrics,
    non_private,
    privacy,
    report,
    scores,
    write_run,
)

HOSTILE = "</script></svg><script>alert(1)</script><img src=x onerror=alert(1)>$x_"


def hostile() -> RunReport:
    run = report(HOSTILE, HOSTILE, privacy(unit=HOSTILE, assumptions=[HOSTILE], statement=HOSTILE))
    run = run.model_copy(update={"settings": {HOSTILE: HOSTILE}})
    data = run.data.model_copy(update={"source": HOSTILE, "dropped": {HOSTILE: 1}})
    model = run.model.model_copy(update={"name": HOSTILE, "origin": HOSTILE})
    return run.model_copy(update={"data": data, "model": model, "machine": {HOSTILE: HOSTILE}})


def both(label: str, run: RunReport) -> str:
    plain = report("plain", "non-private", non_private())
    arms = [(label, run, metrics()), ("plain", plain, metrics(private=False))]
    return render_grid(compared(*arms))


def lines(*of: CellResult) -> str:
    return render_grid(grid().model_copy(update={"lines": of, "differences": differences(of)}))


PAGES: dict[str, Callable[[], str]] = {
    "run": lambda: render_run(report(), metrics()),
    "non-private": lambda: render_run(report(promise=non_private()), metrics()),
    "comparison": lambda: both("uls", report()),
    "grid": lambda: render_grid(grid()),
    "lines": lambda: lines(line("a"), line("b")),
    "hostile run": lambda: render_run(hostile(), metrics()),
    "hostile comparison": lambda: both(HOSTILE, hostile()),
    "hostile lines": lambda: lines(line(HOSTILE), line("b")),
    "hostile grid": lambda: lines(line(HOSTILE, epsilon="1"), line("b", epsilon="4")),
}
every_page = pytest.mark.parametrize("name", PAGES)


@cache
def rendered(name: str) -> str:
    return PAGES[name]()


@every_page
def test_a_page_loads_nothing_runs_nothing_and_puts_privacy_first(name: str) -> None:
    page = rendered(name)
    assert len(page.encode()) < 400_000
    assert not re.search(
        r"<(script|link|iframe|img|object|embed|base|form)|https?://|@import|url\([^#]", page
    )
    tags = re.sub(r">[^<]*", ">", page[page.index("<main>") :])
    assert not re.search(r"\s(src|srcset|href|action|on\w+)=", tags.replace('xlink:href="#', ""))
    policies = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert len(policies) == 1 and "default-src 'none'" in policies[0]
    assert "http" not in policies[0] and "script" not in policies[0]
    body = page.index("<main>")
    first = page.index("privacy", body)
    assert "<table" not in page[body:first] and 'class="plot"' not in page[body:first]
    ids = re.findall(r' id="([^"]*)"', page)
    assert all(re.fullmatch(r"[mp][0-9a-f]+|C\d_.*", one) or ids.count(one) == 1 for one in ids)


@every_page
def test_a_page_says_what_is_not_protected_and_no_figure_repeats_it(name: str) -> None:
    page = rendered(name)
    figures = re.findall(r"<figure.*?</svg>(.*?)</figure>", page, re.DOTALL)
    assert figures
    assert not any("not protected" in one or "δ = " in one for one in figures)
    assert "not protected" in page


def test_the_privacy_block_holds_an_epsilon_with_all_its_terms() -> None:
    for name, blocks in (("run", 1), ("comparison", 2), ("grid", 3)):
        found = re.findall(r'<section class="card privacy.*?</section>', rendered(name), re.DOTALL)
        assert len(found) == blocks
        for part in ("8.00", "δ = 1e-5", "user", "add or remove one user", "Poisson over users"):
            assert part in found[0] or name == "grid"
        for part in ("δ = 1e-5", "for each user", "pld"):
            assert part in found[0]
        assert "No privacy guarantee" in found[-1] or name == "run"


def test_a_run_without_a_guarantee_says_so_and_plots_no_epsilon() -> None:
    """Even if its metrics have one: on the way to no guarantee it means nothing."""
    page = rendered("non-private")
    assert "No privacy guarantee" in page and "<dt>ε</dt><dd>none</dd>" in page
    assert "figure-epsilon" not in page
    assert "figure-signal" not in page  # there is no noise


def test_training_loss_is_beside_held_out_loss_of_the_same_mean() -> None:
    figures = re.split(r'<figure.*?id="', rendered("run"))
    (training,) = [part for part in figures if part.startswith("figure-training")]
    assert "held-out loss, same mean\nround: 0\nnats per token: 3.4" in training
    assert "cohort's training loss" in training
    (held_out,) = [part for part in figures if part.startswith("figure-loss")]
    assert "training" not in held_out


def test_the_page_has_the_reports_numbers() -> None:
    page = rendered("run")
    assert re.search(r"beyond group_size</dt><dd>4,512<", page)
    for term, value in (
        ("Non-finite updates left out", "1"),
        ("server.optimizer", "adam"),
        ("server.learning_rate", "0.01"),
        ("Clipped units", "87.3 %"),
        ("Signal over noise", "about 0.04"),
        ("Denominator", "fixed, denominator = 128"),
        ("Noise multiplier, as priced", "0.84"),
        ("Source of noise", "seeded: the draws follow from the run&#39;s seed, and ε is simulated"),
        ("Rounds", "100"),
    ):
        assert f"<dt>{term}</dt><dd>{value}</dd>" in page
    for tip in ("this run\nround: 0\nnats per token: 3.3", "this run\nround: 4\nε: 8"):
        assert f"<title>{tip}</title>" in page
    assert "start 3.30" in page


@pytest.mark.parametrize(
    ("rank", "pattern", "words"),
    [
        (0, "all", "all"),
        (4, "all", "only the adapters, of rank 4"),
        (4, "lora_|ln_f", "lora_|ln_f"),
    ],
)
def test_the_page_names_the_trained_parameters(rank: int, pattern: str, words: str) -> None:
    changes = {"lora_rank": rank, "trainable_pattern": pattern}
    page = render_run(report(model=report().model.model_copy(update=changes)), metrics())
    assert f"<dt>Trained part</dt><dd>{words}</dd>" in page


def test_a_diverged_run_without_rounds_still_renders() -> None:
    lost = scores(3.0).model_copy(update={"loss": float("nan"), "perplexity": float("inf")})
    page = render_run(report(utility=Utility(initial=lost, final=lost)), ())
    assert "not a number" in page


def test_a_long_run_is_thinned_evenly_with_its_ends() -> None:
    page = render_run(report(), metrics(10_000, every=1))
    assert len(page.encode()) < 400_000
    rounds = [int(n) for n in re.findall(r"<title>this run\nround: (\d+)\nnats", page)]
    assert len(rounds) == MOST and (rounds[0], rounds[-1]) == (0, 10_000)
    assert max(b - a for a, b in pairwise(rounds)) <= 2 * 10_000 / MOST


def test_the_page_is_there_before_the_report_that_means_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = write_run(tmp_path / "other", report(), metrics())
    (tmp_path / "metrics.jsonl").write_bytes((written / "metrics.jsonl").read_bytes())

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    write = partial(write_reports, tmp_path, report())
    with monkeypatch.context() as patch:
        patch.setattr("fedsim.report.html.save_report", killed)
        with pytest.raises(KeyboardInterrupt):
            write()
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert not (tmp_path / "report.json").exists()
    write()
    assert (tmp_path / "report.json").read_bytes() == (written / "report.json").read_bytes()
    (tmp_path / "metrics.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl"):
        write()
