"""Trackers: what is told each line of the metrics as it is written, such as TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedsim.accounting.accountants import choose
from fedsim.accounting.statement import noise_terms
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.plan import RoundPlan
from fedsim.registry import resolve
from fedsim.report.schema import RoundMetrics, load_metrics
from fedsim.runner.folder import RunFolder


class Tracker(Protocol):
    """Somebody who shows a run elsewhere. What it raises ends the run, which can be resumed."""

    def on_round(self, line: RoundMetrics) -> None:
        """Take a line that has just been written to `metrics.jsonl`; round 0 is the start."""

    def close(self) -> None:
        """End, whether the run did well or not."""


TrackerFactory = Callable[[Path, Config, str], Tracker]
"""What is registered under `fedsim.trackers`: called with run folder, config and ε's terms.

When it is called, `metrics.jsonl` holds the lines of rounds that are behind: none in a new run,
those up to the checkpoint in a run that is taken up. Later rounds come (again) by `on_round`. The
terms are what every ε is shown with: δ, whose it is, relation, sampler and accountant; "" where
nothing is promised.
"""


def find_trackers(names: Sequence[str]) -> list[TrackerFactory]:
    """Return the factories of these names.

    Raises:
        ConfigError: nothing is registered under a name, or its package is not installed.
    """
    return [resolve("trackers", name, "training.trackers") for name in names]


@contextmanager
def tracking(
    factories: Sequence[TrackerFactory], run_dir: Path, config: Config, terms: str
) -> Iterator[Callable[[RoundMetrics], None]]:
    """Give a function that tells a line to all trackers, and close them at the end."""
    with ExitStack() as stack:
        trackers = []
        for factory in factories:
            tracker = factory(run_dir, config, terms)
            stack.callback(tracker.close)
            trackers.append(tracker)

        def tell(line: RoundMetrics) -> None:
            for tracker in trackers:
                tracker.on_round(line)

        yield tell


def epsilon_terms(plan: RoundPlan, config: Config) -> str:
    """Return what an ε of this run means, in words; "" where nothing is promised."""
    delta = config.privacy.delta
    if plan.noise_multiplier == 0.0 or delta is None:
        return ""
    accountant, relation = choose([plan.cost], config.privacy.accountant, plan.relation)
    sampler = plan.sampling.of(f"{plan.unit}s")
    hypothetical = "" if plan.sampling.guaranteed else "hypothetical, not a guarantee: "
    return (
        f"{hypothetical}δ = {delta:g}, for one user, {relation.phrase}, {sampler}, "
        f"{accountant.name} accountant, {noise_terms(plan.entropy)}"
    )


try:
    from torch.utils.tensorboard import SummaryWriter
except ModuleNotFoundError:
    raise ConfigError(
        "training.trackers = 'tensorboard': needs the package tensorboard; "
        "pip install -c constraints.txt -e '.[tensorboard]'"
    ) from None

_COVERED = ("clip_norm", "released_share")  # they follow from releases that were paid for
_FLUSH_SECONDS = 10  # so that whoever looks on sees the last rounds


class TensorBoard:
    """A `fedsim.runner.tracking.Tracker`: a scalar for every number, its step the round.

    The name of ε has its terms; what is computed on private text, and no ε covers, stands under
    "not covered by ε". A run that is taken up writes its event files anew from the
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
        for name, value in _numbers(line.model_dump(exclude={"round"}, exclude_none=True)):
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
