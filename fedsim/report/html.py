"""Self-contained HTML pages, the privacy statement first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from fedsim.report import wording
from fedsim.report.comparison import Comparison, comparison_table, reading_notes
from fedsim.report.plots import comparison_plots, run_plots
from fedsim.report.schema import RoundMetrics, RunReport, load_metrics, save_report
from fedsim.utils.files import write_atomically

MOST = 1_000  # of those with scores, and as many of the others: more than a screen has columns


def shown(metrics: Sequence[RoundMetrics]) -> list[RoundMetrics]:
    """Return at most `MOST` lines with scores and `MOST` others, first and last among them.

    A short run's are all shown. `metrics.jsonl` keeps every line.
    """
    scored = [line for line in metrics if line.held_out is not None]
    others = [line for line in metrics if line.held_out is None]
    return sorted([*_evenly(scored), *_evenly(others)], key=lambda line: line.round)


def _evenly(lines: list[RoundMetrics]) -> list[RoundMetrics]:
    if len(lines) <= MOST:
        return lines
    last = len(lines) - 1
    return [lines[number * last // (MOST - 1)] for number in range(MOST)]


HTML_FILE = "report.html"


def write_reports(run_dir: Path, report: RunReport) -> None:
    """Write `report.html` and then `report.json`: a folder that has the latter is finished.

    Raises:
        ConfigError: `metrics.jsonl` is missing or malformed.
    """
    write_atomically(run_dir / HTML_FILE, render_run(report, load_metrics(run_dir)))
    save_report(run_dir, report)


def render_run(report: RunReport, metrics: Sequence[RoundMetrics]) -> str:
    """Return the page of one run: its promise, its plots, its data, cost, model and versions."""
    some = shown(metrics)
    return render_page(
        "run.html.jinja",
        report=report,
        plots=run_plots(some, report.utility.initial, report.privacy),
        scored=[line for line in some if line.held_out is not None],
        num_scored=sum(line.held_out is not None for line in metrics),
        num_left_out=len(metrics) - len(some),
        non_finite=sum(line.non_finite or 0 for line in metrics),
    )


def render_comparison(comparison: Comparison) -> str:
    """Return the page of several runs: each one's promise, the table, the plots."""
    return render_page(
        "comparison.html.jinja",
        comparison=comparison,
        table=comparison_table(comparison),
        reading_notes=reading_notes(comparison),
        plots=comparison_plots(comparison.runs),
    )


def render_page(template: str, **values: object) -> str:
    """Return a template of this package with plotly.js and the wording at its hand."""
    environment = Environment(
        loader=PackageLoader("fedsim.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template(template)
    return page.render(say=wording, plotly_js=get_plotlyjs(), **values)
