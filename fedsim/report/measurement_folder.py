"""The folder that a measured grid leaves behind: the same lines in several forms."""

from __future__ import annotations

from pathlib import Path

from fedsim.paths import write_atomically
from fedsim.report.measurement import Measurement
from fedsim.report.measurement_tables import to_csv, to_json, to_markdown


def write_measurement(measurement: Measurement, out: Path) -> None:
    """Write `comparison.{json,csv,md}` into `out`."""
    # Everything is rendered before anything is written: an error leaves no half folder.
    contents: dict[str, bytes | str] = {
        "comparison.json": to_json(measurement),
        "comparison.csv": to_csv(measurement),
        "comparison.md": to_markdown(measurement),
    }
    for name, content in contents.items():
        write_atomically(out / name, content)
