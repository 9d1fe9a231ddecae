"""The folder that `compare` leaves behind: the same comparison in five forms."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedsim.report.comparison import Comparison, compare, comparison_table, unique_labels
from fedsim.report.html import render_comparison
from fedsim.report.pictures import draw_comparison
from fedsim.report.schema import load_metrics, load_report
from fedsim.utils.files import write_atomically


def write_comparison(run_dirs: Sequence[Path], out_dir: Path) -> Comparison:
    """Compare finished runs and write `comparison.{json,csv,md,png,html}` into `out_dir`.

    Args:
        run_dirs: run folders; each run is labelled by its title, numbered where titles repeat.
        out_dir: made if it is not there.

    Raises:
        ConfigError: no run folders, or one whose report or metrics are missing or malformed.
    """
    reports = [load_report(run_dir) for run_dir in run_dirs]
    labels = unique_labels([report.title for report in reports])
    metrics = [load_metrics(run_dir) for run_dir in run_dirs]
    comparison = compare(list(zip(labels, reports, metrics, strict=True)))
    table = comparison_table(comparison)
    # Everything is rendered before anything is written: an error leaves no half folder.
    contents: dict[str, bytes | str] = {
        "comparison.json": comparison.model_dump_json(indent=2) + "\n",
        "comparison.csv": table.csv(),
        "comparison.md": table.markdown(),
        "comparison.png": draw_comparison(comparison),
        "comparison.html": render_comparison(comparison),
    }
    for name, content in contents.items():
        write_atomically(out_dir / name, content)
    return comparison
