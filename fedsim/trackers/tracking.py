"""Trackers: plug-ins that receive each line of the metrics, such as TensorBoard."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from fedsim.accounting.statement import HYPOTHETICAL
from fedsim.config import Config
from fedsim.errors import ConfigError
from fedsim.plan import RoundPlan
from fedsim.registry import resolve
from fedsim.report.schema import METRICS_FILE, RoundMetrics, load_metrics
from fedsim.strategy import plan_terms

log = logging.getLogger("fedsim")


class Tracker(Protocol):
    """Shows a run elsewhere. Its first error is logged; errors do not end the run."""

    def on_round(self, line: RoundMetrics) -> None:
        """Take a line of `metrics.jsonl`; round 0 is the start. Called again after an error."""

    def close(self) -> None:
        """End, also after a failed run."""


TrackerFactory = Callable[[Path, Config, str], Tracker]
"""Registered under `fedsim.trackers`; called with run folder, config and ε's terms.

A tracker gets all lines from round 0, also in a resumed run. It must show the terms with each ε: δ,
unit, relation, sampler and accountant; "" without a guarantee.
"""

_PATIENCE = 10.0
_COVERED = (  # tags of numbers that ε covers
    *("clip_norm", "released_share", "release_over_noise", "private_scores/"),
)


def find_trackers(names: Sequence[str]) -> dict[str, TrackerFactory]:
    """Return the factories of these names.

    Raises:
        ConfigError: a name is not registered, or its package is not installed.
    """
    factories = {}
    for name in names:
        try:
            factories[name] = resolve("trackers", name, "training.trackers")
        except ModuleNotFoundError as error:  # a built-in tracker without its package
            raise ConfigError(
                f"training.trackers = {name!r}: needs a package ({error}); "
                f"pip install 'fedsim-dp[{name}]'"
            ) from None
    return factories


@contextmanager
def tracking(
    factories: Mapping[str, TrackerFactory], run_dir: Path, config: Config, terms: str
) -> Iterator[Callable[[RoundMetrics], None]]:
    """Yield a function that sends a line to all trackers; close the trackers at the end.

    Trackers first get the lines of earlier rounds.
    """
    trackers = [
        _RetryingTracker(name, partial(factory, run_dir, config, terms), run_dir)
        for name, factory in factories.items()
    ]

    def send(line: RoundMetrics | None = None) -> None:
        for each in trackers:
            each.send(line)

    try:
        send()
        yield send
    finally:
        for each in trackers:
            each.close()


@dataclass
class _RetryingTracker:
    """A tracker that may fail: the run continues, and the tracker gets missed lines later.

    After a failed attempt it waits ten times as long as the attempt took. So an unreachable server
    slows the run by at most a tenth.
    """

    name: str
    make: Callable[[], Tracker]
    run_dir: Path
    tracker: Tracker | None = None
    num_sent: int = 0
    failed: bool = False
    next_attempt: float = 0.0

    def send(self, line: RoundMetrics | None = None) -> None:
        """Send the last line and all missed lines, unless it waits after a failure."""
        started = time.monotonic()
        if started < self.next_attempt:
            return
        try:
            self.tracker = self.tracker or self.make()
            for new in self._new_lines(line):
                self.tracker.on_round(new)
                self.num_sent += 1
        except Exception as error:  # an external service may raise anything
            now = time.monotonic()
            self.next_attempt = now + _PATIENCE * (now - started)
            self._warn(error)

    def _new_lines(self, last: RoundMetrics | None) -> Sequence[RoundMetrics]:
        if last is not None and last.round == self.num_sent:
            return [last]
        if not (self.run_dir / METRICS_FILE).exists():
            return ()
        return load_metrics(self.run_dir)[self.num_sent :]

    def close(self) -> None:
        """Send all missed lines, and close the tracker."""
        self.next_attempt = 0.0
        self.send()
        try:
            if self.tracker is not None:
                self.tracker.close()
        except Exception as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self.failed:
            self.failed = True
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            log.warning(
                "tracker %s: %s; the run continues, the tracker gets missed lines once it works, "
                "and metrics.jsonl has all lines",
                self.name,
                reason,
            )


def scalars(line: RoundMetrics, terms: str) -> Iterator[tuple[str, float]]:
    """Yield a tag and a value for each number of a line, without the round.

    The tag of ε includes its terms. Tags of numbers that no ε, or only a hypothetical ε, covers
    begin with "not covered by ε". NaN and infinities are included.
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
