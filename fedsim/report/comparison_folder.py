"""The folder that `fedsim compare` leaves behind: one result in several forms."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fedsim.report.comparison import (
    Comparison,
    compare,
    comparison_chart,
    comparison_table,
    render_comparison,
)
from fedsim.report.drawing import pictures
from fedsim.report.figures import Chart
from fedsim.report.grid_page import grid_chart, render_grid
from fedsim.report.grid_result import GridResult, grid_table
from fedsim.report.schema import Record, load_metrics, load_report
from fedsim.report.tables import Table
from fedsim.utils.files import write_atomically

log = logging.getLogger(__name__)


def write_comparison(run_dirs: Sequence[Path], out: Path) -> Comparison:
    """Compare finished runs and write `comparison.{json,csv,md,html,png,svg,pdf}` into `out`.

    Args:
        run_dirs: run folders; each run is labelled by its title, or where titles repeat by its
            folder.
        out: made if it is not there.

    Raises:
        ConfigError: no run folders, or one whose report or metrics are missing or malformed.
    """
    reports = [load_report(run_dir) for run_dir in run_dirs]
    metrics = [load_metrics(run_dir) for run_dir in run_dirs]
    places = [run_dir.resolve() for run_dir in run_dirs]
    ways = (
        [report.title for report in reports],
        [f"{place.parent.name}/{place.name}" for place in places],
        [str(place) for place in places],
    )
    labels = next((labels for labels in ways if len(set(labels)) == len(labels)), ways[-1])
    comparison = compare(list(zip(labels, reports, metrics, strict=True)))
    page, chart = render_comparison(comparison), comparison_chart(comparison)
    _write(out, comparison, comparison_table(comparison), chart, page)
    return comparison


def write_grid(result: GridResult, out: Path) -> None:
    """Write `comparison.{json,csv,md,html,png,svg,pdf}` into `out`."""
    _write(out, result, grid_table(result), grid_chart(result), render_grid(result))


def _write(out: Path, result: Record, table: Table, chart: Chart, page: str) -> None:
    # Everything is rendered before anything is written: an error leaves no half folder.
    contents: dict[str, bytes | str] = {
        "comparison.json": result.model_dump_json(indent=2) + "\n",
        "comparison.csv": table.csv(),
        "comparison.md": table.markdown(),
        "comparison.html": page,
        **pictures("comparison", chart),
    }
    if (out / "comparison.json").exists():
        log.info("%s: replaces an earlier comparison", out)
    for name, content in contents.items():
        write_atomically(out / name, content)
