"""A tracker: round, cohort and losses as `RUN_DIR/losses.csv`, for whoever likes spreadsheets."""

from __future__ import annotations

import csv
from pathlib import Path

from fedsim import Config, RoundMetrics


class CsvTracker:
    """A `fedsim.Tracker` that writes a row a round."""

    def __init__(self, run_dir: Path, config: Config, terms: str) -> None:
        self._file = (run_dir / "losses.csv").open("w", newline="", encoding="utf-8")
        self._rows = csv.writer(self._file)
        self._rows.writerow(["round", "units", "train_loss", "held_out_loss"])

    def on_round(self, line: RoundMetrics) -> None:
        """Write the row of a line; what a round did not measure stays empty."""
        held_out = None if line.held_out is None else line.held_out.loss
        self._rows.writerow([line.round, line.units, line.train_loss, held_out])
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
