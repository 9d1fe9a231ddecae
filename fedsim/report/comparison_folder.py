"""The output folder of `fedsim compare`: one result in several formats."""

from __future__ import annotations

import logging
from pathlib import Path

from fedsim.report.drawing import draw, pictures
from fedsim.report.grid_page import grid_chart, grid_tables, render_grid
from fedsim.report.grid_result import GridResult
from fedsim.utils.files import write_atomically

log = logging.getLogger(__name__)


def write_grid(result: GridResult, out: Path) -> None:
    """Write `comparison.{json,csv,md,html,tex,png,svg,pdf}` and texts for a paper to `out`.

    The PNG has its notes below it. The other pictures and `comparison.tex` have no notes:
    `comparison-caption.tex` has them. `comparison-differences.tex` has the differences of arms,
    `comparison-attacks.tex` the attacks on runs that were attacked.
    """
    tables, chart = grid_tables(result), grid_chart(result)
    # Render everything before writing, so that an error leaves no incomplete folder.
    contents: dict[str, bytes | str] = {
        "comparison.json": result.model_dump_json(indent=2) + "\n",
        "comparison.csv": tables[""].csv(),
        "comparison.md": "\n".join(table.markdown() for table in tables.values()),
        "comparison.html": render_grid(result),
        **{f"comparison{suffix}.tex": table.latex() for suffix, table in tables.items()},
        "comparison-caption.tex": "".join(table.caption() for table in tables.values()),
        **pictures("comparison", chart._replace(notes=())),
        "comparison.png": draw(chart, "png"),
    }
    if (out / "comparison.json").exists():
        log.info("%s: replaces an earlier comparison", out)
    for name, content in contents.items():
        write_atomically(out / name, content)
