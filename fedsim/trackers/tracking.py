"""Trackers: plug-ins that receive each line of the metrics, such as TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from fedsim.accounting.statement import HYPOTHETICAL
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.plan import RoundPlan
from fedsim.registry import resolve
from fedsim.report.schema import METRICS_FILE, RoundMetrics, load_metrics
from fedsim.strategy import plan_terms


class Tracker(Protocol):
    """Shows a run elsewhere. An error that it raises ends the run, which can be resumed."""

    def on_round(self, line: RoundMetrics) -> None:
        """Take a line of `metrics.jsonl`; round 0 is the start."""

    def close(self) -> None:
        """End, whether the run did well or not."""


TrackerFactory = Callable[[Path, Config, str], Tracker]
"""Registered under `fedsim.trackers`; called with run folder, config and ε's terms.

A tracker gets all lines from the start, also in a resumed run, and begins anew there. The terms
must be shown with every ε: δ, unit, relation, sampler and accountant; "" without a guarantee.
"""

_COVERED = ("clip_norm", "released_share", "private_scores/")  # from releases that ε counts


def find_trackers(names: Sequence[str]) -> list[TrackerFactory]:
    """Return the factories of these names.

    Raises:
        ConfigError: nothing is registered under a name, or its package is not installed.
    """
    found = []
    for name in names:
        try:
            found.append(resolve("trackers", name, "training.trackers"))
        except ModuleNotFoundError as error:  # a tracker of our own
            raise ConfigError(
                f"training.trackers = {name!r}: needs a package ({error}); "
                f"pip install 'fedsim-dp[{name}]'"
            ) from None
    return found


@contextmanager
def tracking(
    factories: Sequence[TrackerFactory], run_dir: Path, config: Config, terms: str
) -> Iterator[Callable[[RoundMetrics], None]]:
    """Give a function that hands a line to all trackers, and close them at the end.

    They get the lines of earlier rounds first.
    """
    earlier = load_metrics(run_dir) if (run_dir / METRICS_FILE).exists() else ()
    with ExitStack() as stack:
        trackers = []
        for factory in factories:
            tracker = factory(run_dir, config, terms)
            stack.callback(tracker.close)
            trackers.append(tracker)

        def tell(line: RoundMetrics) -> None:
            for tracker in trackers:
                tracker.on_round(line)

        for line in earlier if trackers else ():
            tell(line)
        yield tell


def scalars(line: RoundMetrics, terms: str) -> Iterator[tuple[str, float]]:
    """Yield a tag and a value for every number of a line but the round, NaN and infinities too.

    The tag of ε has its terms. Numbers from private text that no ε covers, or only a hypothetical
    one, stand under "not covered by ε".
    """
    guaranteed = bool(terms) and not terms.startswith(HYPOTHETICAL)
    content = line.model_dump(exclude={"round", "epsilon_terms"}, exclude_none=True)
    for name, value in content.items():
        parts = value if isinstance(value, dict) else {"": value}
        for part, number in parts.items():
            tag = f"{name}/{part}" if part else name
            if tag == "epsilon":
                yield f"epsilon ({terms})", float(number)
            else:
                covered = guaranteed and tag.startswith(_COVERED)
                yield tag if covered else f"not covered by ε/{tag}", float(number)


def epsilon_terms(plan: RoundPlan, config: Config) -> str:
    """Return the terms of an ε of this run, in words; "" without a guarantee."""
    if plan.noise_multiplier == 0.0 or config.privacy.delta is None:
        return ""
    return plan_terms(config, plan).caption()
