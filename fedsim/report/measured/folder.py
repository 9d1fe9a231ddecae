"""The folder that a measured grid leaves behind: the same lines in several forms."""

from __future__ import annotations

from pathlib import Path

from fedsim.report.measured.lines import Measurement
from fedsim.report.measured.page import render_measurement
from fedsim.report.measured.picture import draw_measurement
from fedsim.report.measured.tables import measurement_table
from fedsim.utils.files import write_atomically


def write_measurement(measurement: Measurement, out: Path) -> None:
    """Write `comparison.{json,csv,md,png,html}` into `out`."""
    table = measurement_table(measurement)
    # Everything is rendered before anything is written: an error leaves no half folder.
    contents: dict[str, bytes | str] = {
        "comparison.json": measurement.model_dump_json(indent=2) + "\n",
        "comparison.csv": table.csv(),
        "comparison.md": table.markdown(),
        "comparison.png": draw_measurement(measurement),
        "comparison.html": render_measurement(measurement),
    }
    for name, content in contents.items():
        write_atomically(out / name, content)
