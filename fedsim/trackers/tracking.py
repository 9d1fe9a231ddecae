"""Trackers: plug-ins that receive each line of the metrics, such as TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from fedsim.accounting.statement import HYPOTHETICAL
from fedsim.config import Config
from fedsim.plan import RoundPlan
from fedsim.registry import resolve
from fedsim.report.schema import METRICS_FILE, RoundMetrics, load_metrics
from fedsim.strategy import plan_terms


class Tracker(Protocol):
    """Shows a run elsewhere. An error that it raises ends the run, which can be resumed."""

    def on_round(self, line: RoundMetrics) -> None:
        """Take a line that has just been written to `metrics.jsonl`; round 0 is the start."""

    def close(self) -> None:
        """End, whether the run did well or not."""


TrackerFactory = Callable[[Path, Config, str], Tracker]
"""What is registered under `fedsim.trackers`: called with run folder, config and ε's terms.

When it is called, `metrics.jsonl` holds the lines of rounds that are behind: none in a new run,
those up to the checkpoint in a run that is taken up. Later rounds come (again) by `on_round`. The
terms are what every ε is shown with: δ, unit, relation, sampler and accountant; "" where
there is no guarantee.
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
    """Give a function that hands a line to all trackers, and close them at the end."""
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


_COVERED = (
    "clip_norm",
    "released_share",
    "private_scores/",
)  # they follow from releases that were paid for


def scalars(line: RoundMetrics, terms: str) -> Iterator[tuple[str, float]]:
    """Yield a tag and a value for every number of a line but the round, NaN and infinities too.

    The tag of ε has its terms; what is computed on private text, and no ε covers or a hypothetical
    one does, stands under "not covered by ε".
    """
    guaranteed = bool(terms) and not terms.startswith(HYPOTHETICAL)
    for name, value in _numbers(
        line.model_dump(exclude={"round", "epsilon_terms"}, exclude_none=True)
    ):
        if name == "epsilon":
            yield f"epsilon ({terms})", value
        else:
            covered = guaranteed and name.startswith(_COVERED)
            yield name if covered else f"not covered by ε/{name}", value


def _numbers(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", float(value)


def shown_run(run_dir: Path) -> str:
    """Return what a run is called elsewhere: its folder's name without a seed in it."""
    name = run_dir.resolve().name
    return ",".join(part for part in name.split(",") if not part.startswith("seed=")) or "run"


def lines_behind(run_dir: Path) -> tuple[RoundMetrics, ...]:
    """Return the lines of rounds that are behind when a tracker begins; see `TrackerFactory`."""
    return load_metrics(run_dir) if (run_dir / METRICS_FILE).exists() else ()


def epsilon_terms(plan: RoundPlan, config: Config) -> str:
    """Return what an ε of this run means, in words; "" without a guarantee."""
    if plan.noise_multiplier == 0.0 or config.privacy.delta is None:
        return ""
    return plan_terms(config, plan).caption()
