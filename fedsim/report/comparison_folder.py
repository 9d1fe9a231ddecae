"""The output folder of `fedsim compare`: one result in several formats."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedsim.report.attack_report import load_attack
from fedsim.report.comparison import (
    Comparison,
    compare,
    comparison_chart,
    comparison_tables,
    render_comparison,
)
from fedsim.report.differences import differences_table
from fedsim.report.drawing import draw, pictures
from fedsim.report.figures import Chart
from fedsim.report.grid_page import grid_chart, render_grid
from fedsim.report.grid_result import GridResult, grid_table
from fedsim.report.labels import Arm, label_parts
from fedsim.report.schema import Record, load_metrics, load_report
from fedsim.report.tables import Table
from fedsim.utils.files import write_atomically

log = logging.getLogger(__name__)


def write_comparison(
    run_dirs: Sequence[Path], out: Path, arms: Mapping[Path, Arm] | None = None
) -> Comparison:
    """Compare finished runs; write the files of `write_grid` except the table of differences.

    A run folder with the files of `fedsim attack` has its attack in `comparison-attacks.tex`, in
    `comparison.md`, in the picture and on the page.

    Args:
        run_dirs: run folders.
        out: output folder, created if needed.
        arms: settings of runs of a grid, for their labels. Other runs have their title as label,
            or their folder if labels repeat.

    Raises:
        ConfigError: no run folders, or a report or metrics file is missing or malformed.
    """
    reports = [load_report(run_dir) for run_dir in run_dirs]
    metrics = [load_metrics(run_dir) for run_dir in run_dirs]
    known = arms or {}
    labelled = [
        known.get(run_dir, (report.title, {}))
        for run_dir, report in zip(run_dirs, reports, strict=True)
    ]
    labels = [", ".join(parts) for parts in label_parts(labelled)]
    if len(set(labels)) < len(labels):
        labels = [str(run_dir) for run_dir in run_dirs]
    attacks = {
        label: attack
        for label, run_dir in zip(labels, run_dirs, strict=True)
        if (attack := load_attack(run_dir)) is not None
    }
    comparison = compare(list(zip(labels, reports, metrics, strict=True)), attacks)
    page, chart = render_comparison(comparison), comparison_chart(comparison)
    tables = dict(zip(("", "-attacks"), comparison_tables(comparison), strict=False))
    _write(out, comparison, tables, chart, page)
    return comparison


def write_grid(result: GridResult, out: Path) -> None:
    """Write `comparison.{json,csv,md,html,tex,png,svg,pdf}` and texts for a paper to `out`.

    The PNG has its notes below it. The other pictures and `comparison.tex` have no notes:
    `comparison-caption.tex` has them. `comparison-differences.tex` has the differences of arms.
    """
    pairs = differences_table(result)
    tables = {"": grid_table(result), **({"-differences": pairs} if pairs else {})}
    _write(out, result, tables, grid_chart(result), render_grid(result))


def _write(out: Path, result: Record, tables: Mapping[str, Table], chart: Chart, page: str) -> None:
    # Render everything before writing, so that an error leaves no incomplete folder.
    contents: dict[str, bytes | str] = {
        "comparison.json": result.model_dump_json(indent=2) + "\n",
        "comparison.csv": tables[""].csv(),
        "comparison.md": "\n".join(table.markdown() for table in tables.values()),
        "comparison.html": page,
        **{f"comparison{suffix}.tex": table.latex() for suffix, table in tables.items()},
        "comparison-caption.tex": "".join(table.caption() for table in tables.values()),
        **pictures("comparison", chart._replace(notes=())),
        "comparison.png": draw(chart, "png"),
    }
    if (out / "comparison.json").exists():
        log.info("%s: replaces an earlier comparison", out)
    for name, content in contents.items():
        write_atomically(out / name, content)
