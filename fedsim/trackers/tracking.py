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
    """Shows a run elsewhere. An error that it raises is logged once, and never ends the run."""

    def on_round(self, line: RoundMetrics) -> None:
        """Take a line of `metrics.jsonl`; round 0 is the start. Gets it again after an error."""

    def close(self) -> None:
        """End, whether the run did well or not."""


TrackerFactory = Callable[[Path, Config, str], Tracker]
"""Registered under `fedsim.trackers`; called with run folder, config and ε's terms.

A tracker gets all lines from the start, also in a resumed run, and begins anew there. The terms
must be shown with every ε: δ, unit, relation, sampler and accountant; "" without a guarantee.
"""

_PATIENCE = 10.0
_COVERED = (  # from releases that ε counts
    *("clip_norm", "released_share", "release_over_noise", "private_scores/"),
)


def find_trackers(names: Sequence[str]) -> dict[str, TrackerFactory]:
    """Return the factories of these names.

    Raises:
        ConfigError: nothing is registered under a name, or its package is not installed.
    """
    found = {}
    for name in names:
        try:
            found[name] = resolve("trackers", name, "training.trackers")
        except ModuleNotFoundError as error:  # a tracker of our own
            raise ConfigError(
                f"training.trackers = {name!r}: needs a package ({error}); "
                f"pip install 'fedsim-dp[{name}]'"
            ) from None
    return found


@contextmanager
def tracking(
    factories: Mapping[str, TrackerFactory], run_dir: Path, config: Config, terms: str
) -> Iterator[Callable[[RoundMetrics], None]]:
    """Give a function that hands a line to all trackers, and close them at the end.

    They get the lines of earlier rounds first.
    """
    told = [
        _Told(name, partial(factory, run_dir, config, terms), run_dir)
        for name, factory in factories.items()
    ]

    def tell(line: RoundMetrics | None = None) -> None:
        for each in told:
            each.tell(line)

    try:
        tell()
        yield tell
    finally:
        for each in told:
            each.close()


@dataclass
class _Told:
    """A tracker that may fail: it gets what it missed later, and the run goes on.

    After an attempt that failed it is left alone for ten times as long as that took: a server that
    does not answer takes a run a tenth of its time at most.
    """

    name: str
    make: Callable[[], Tracker]
    run_dir: Path
    tracker: Tracker | None = None
    num_told: int = 0
    failed: bool = False
    next_attempt: float = 0.0

    def tell(self, line: RoundMetrics | None = None) -> None:
        """Hand over the last line, and those that it has not got, if it is time for that."""
        started = time.monotonic()
        if started < self.next_attempt:
            return
        try:
            self.tracker = self.tracker or self.make()
            for new in self._new_lines(line):
                self.tracker.on_round(new)
                self.num_told += 1
        except Exception as error:  # of somebody else's service
            now = time.monotonic()
            self.next_attempt = now + _PATIENCE * (now - started)
            self._warn(error)

    def _new_lines(self, last: RoundMetrics | None) -> Sequence[RoundMetrics]:
        if last is not None and last.round == self.num_told:
            return [last]
        if not (self.run_dir / METRICS_FILE).exists():
            return ()
        return load_metrics(self.run_dir)[self.num_told :]

    def close(self) -> None:
        """Hand over the rest, and close it."""
        self.next_attempt = 0.0
        self.tell()
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
                "tracker %s: %s; the run goes on, the tracker gets what it missed once it works, "
                "and metrics.jsonl has it all",
                self.name,
                reason,
            )


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
