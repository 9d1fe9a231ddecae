"""The TensorBoard tracker."""

from __future__ import annotations

from pathlib import Path

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.report.schema import RoundMetrics
from fedsim.trackers.tracking import lines_behind, scalars

try:
    from torch.utils.tensorboard import SummaryWriter
except ModuleNotFoundError:
    raise ConfigError(
        "training.trackers = 'tensorboard': needs the package tensorboard; "
        "pip install 'fedsim-dp[tensorboard]'"
    ) from None

_FLUSH_SECONDS = 10  # so that a watcher sees the last rounds


class TensorBoard:
    """A `fedsim.trackers.tracking.Tracker`: scalars with the tags of `scalars`, by round.

    A run that is taken up writes its event files again from the
    metrics, so no round is in them twice; other files in the folder stay.
    """

    def __init__(self, run_dir: Path, config: Config, terms: str) -> None:
        folder = run_dir / "tensorboard"
        for path in folder.glob("events.out.tfevents.*"):
            path.unlink()
        self._terms = terms
        self._writer = SummaryWriter(str(folder), flush_secs=_FLUSH_SECONDS)
        for line in lines_behind(run_dir):
            self.on_round(line)

    def on_round(self, line: RoundMetrics) -> None:
        """Write a scalar for every number of the line, NaN and infinities too."""
        for name, value in scalars(line, self._terms):
            self._writer.add_scalar(name, value, line.round)

    def close(self) -> None:
        """Write what is waiting and close the file."""
        self._writer.close()
