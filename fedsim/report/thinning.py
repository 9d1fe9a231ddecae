"""Which lines of a long run's metrics a page shows: evenly, so that it stays light."""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.report.schema import RoundMetrics

MOST = 1_000  # of those with scores, and as many of the others: more than a screen has columns


def shown(metrics: Sequence[RoundMetrics]) -> list[RoundMetrics]:
    """Return at most `MOST` lines with scores and `MOST` others, first and last among them.

    A short run's are all shown. `metrics.jsonl` keeps every line.
    """
    scored = [line for line in metrics if line.held_out is not None]
    others = [line for line in metrics if line.held_out is None]
    return sorted([*_evenly(scored), *_evenly(others)], key=lambda line: line.round)


def _evenly(lines: list[RoundMetrics]) -> list[RoundMetrics]:
    if len(lines) <= MOST:
        return lines
    last = len(lines) - 1
    return [lines[number * last // (MOST - 1)] for number in range(MOST)]
