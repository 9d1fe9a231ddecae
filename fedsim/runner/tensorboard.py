"""The TensorBoard tracker. Apart from `tracking`: tensorboard is an extra that may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.report.schema import RoundMetrics, load_metrics
from fedsim.runner.folder import RunFolder

try:
    from torch.utils.tensorboard import SummaryWriter
except ModuleNotFoundError:
    raise ConfigError(
        "training.trackers = 'tensorboard': needs the package tensorboard; "
        "pip install -c constraints.txt -e '.[tensorboard]'"
    ) from None

_COVERED = ("clip_norm", "released_share")  # they follow from releases that were paid for
_FLUSH_SECONDS = 10  # so that a watcher sees the last rounds


class TensorBoard:
    """A `fedsim.runner.tracking.Tracker`: a scalar for every number, its step the round.

    The name of ε has its terms; what is computed on private text, and no ε covers, stands under
    "not covered by ε". A run that is taken up writes its event files again from the
    metrics, so no round is in them twice; other files in the folder stay.
    """

    def __init__(self, run_dir: Path, config: Config, terms: str) -> None:
        folder = run_dir / "tensorboard"
        for path in folder.glob("events.out.tfevents.*"):
            path.unlink()
        self._epsilon = f"epsilon ({terms})"
        self._writer = SummaryWriter(str(folder), flush_secs=_FLUSH_SECONDS)
        if RunFolder(run_dir).metrics.exists():
            for line in load_metrics(run_dir):
                self.on_round(line)

    def on_round(self, line: RoundMetrics) -> None:
        """Write a scalar for every number of the line, NaN and infinities too."""
        for name, value in _numbers(
            line.model_dump(exclude={"round", "epsilon_terms"}, exclude_none=True)
        ):
            self._writer.add_scalar(self._tag(name), value, line.round)

    def _tag(self, name: str) -> str:
        if name == "epsilon":
            return self._epsilon
        return name if name in _COVERED else f"not covered by ε/{name}"

    def close(self) -> None:
        """Write what is waiting and close the file."""
        self._writer.close()


def _numbers(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", float(value)
