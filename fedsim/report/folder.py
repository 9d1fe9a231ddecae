"""The folder that `fedsim compare` leaves behind: the same result in five forms."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fedsim.report.comparison import Comparison, compare, comparison_table, unique_labels
from fedsim.report.comparison_page import comparison_chart, render_comparison
from fedsim.report.grid_charts import grid_chart
from fedsim.report.grid_page import render_grid
from fedsim.report.grid_result import GridResult, grid_table
from fedsim.report.pictures import draw
from fedsim.report.schema import Record, load_metrics, load_report
from fedsim.report.tables import Table
from fedsim.utils.files import write_atomically

log = logging.getLogger(__name__)


def write_comparison(run_dirs: Sequence[Path], out: Path) -> Comparison:
    """Compare finished runs and write `comparison.{json,csv,md,png,html}` into `out`.

    Args:
        run_dirs: run folders; each run is labelled by its title. Where titles repeat, as those of
            winners of searches do, the folder around its own is in front, or they are numbered.
        out: made if it is not there.

    Raises:
        ConfigError: no run folders, or one whose report or metrics are missing or malformed.
    """
    reports = [load_report(run_dir) for run_dir in run_dirs]
    titles = [report.title for report in reports]
    around = [run_dir.resolve().parent.name for run_dir in run_dirs]
    placed = [
        f"{parent}/{title}" if titles.count(title) > 1 else title
        for parent, title in zip(around, titles, strict=True)
    ]
    labels = placed if len(set(placed)) == len(placed) else unique_labels(titles)
    metrics = [load_metrics(run_dir) for run_dir in run_dirs]
    comparison = compare(list(zip(labels, reports, metrics, strict=True)))
    picture, page = draw(comparison_chart(comparison)), render_comparison(comparison)
    _write(out, comparison, comparison_table(comparison), picture, page)
    return comparison


def write_grid(result: GridResult, out: Path) -> None:
    """Write `comparison.{json,csv,md,png,html}` into `out`."""
    picture, page = draw(grid_chart(result)), render_grid(result)
    _write(out, result, grid_table(result), picture, page)


def _write(out: Path, result: Record, table: Table, picture: bytes, page: str) -> None:
    # Everything is rendered before anything is written: an error leaves no half folder.
    contents: dict[str, bytes | str] = {
        "json": result.model_dump_json(indent=2) + "\n",
        "csv": table.csv(),
        "md": table.markdown(),
        "png": picture,
        "html": page,
    }
    if (out / "comparison.json").exists():
        log.info("%s: written in the place of a former comparison", out)
    for suffix, content in contents.items():
        write_atomically(out / f"comparison.{suffix}", content)
