"""The TensorBoard tracker."""

from __future__ import annotations

from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from fedsim.config import Config
from fedsim.report.schema import RoundMetrics
from fedsim.trackers.tracking import scalars


class TensorBoard:
    """Writes scalars by round to `tensorboard/` in the run folder; keeps other files there."""

    def __init__(self, run_dir: Path, config: Config, terms: str) -> None:
        folder = run_dir / "tensorboard"
        for path in folder.glob("events.out.tfevents.*"):
            path.unlink()
        self._terms = terms
        self._writer = SummaryWriter(str(folder), flush_secs=10)

    def on_round(self, line: RoundMetrics) -> None:
        """Write a scalar for each number of the line, including NaN and infinities."""
        for name, value in scalars(line, self._terms):
            self._writer.add_scalar(name, value, line.round)

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()
