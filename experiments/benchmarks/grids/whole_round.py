"""Times of whole rounds without gradients, added up in the server or by the workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

from fedsim.experiments.benchmarks.grids.null_client import NAME, null_spec, parameters_of
from fedsim.experiments.benchmarks.grids.population import plan_of
from fedsim.experiments.benchmarks.timing import Row, repeated, row_of
from fedsim.grids.collective import CollectiveExecutor
from fedsim.grids.executor import GridExecutor
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid
from fedsim.round import run_round
from fedsim.state import ServerState

_CASES = {"10M": (10_000_000, 2), "10M, 4 workers": (10_000_000, 4), "135M": (135_000_000, 4)}
_KINDS: dict[str, Callable[..., GridExecutor]] = {
    "ray": GridExecutor,
    "ray, collective": CollectiveExecutor,
}
_WARM = 2  # rounds in which stores and buffers take fresh memory, which is slow


def whole_rounds() -> list[Row]:
    """Return the seconds of a round with noise and Adam's step, and the bytes sent by workers.

    `copies` divides the bytes that a worker sends by 2·(n-1)/n float32 copies of the parameters.
    Counters of the loopback interface give the bytes, which include Ray's own messages.
    """
    return [row for case, (size, workers) in _CASES.items() for row in _case(case, size, workers)]


def _case(case: str, size: int, workers: int) -> list[Row]:
    rows = []
    for engine, kind in _KINDS.items():
        with RayGrid(NAME, Share(workers, cpus=2 / workers, gpus=0.0)) as grid:
            executor, plan = kind(grid, null_spec()), plan_of(1_000, 200)
            state, sent = ServerState(0, parameters_of(size)), []

            def one_round() -> None:
                nonlocal state
                before = _sent_bytes()
                state, _ = run_round(state, plan, executor, keep=False)  # noqa: B023
                sent.append((_sent_bytes() - before) / (8 * size * (workers - 1)))  # noqa: B023

            for _ in range(_WARM):
                one_round()
            seconds = repeated(one_round)
        details = {"parameters": size, "workers": workers, "copies": median(sent)}
        rows.append(row_of("grids", f"whole round/{case}", engine, seconds, details=details))
        first = rows[0]["seconds"] or 0.0
        rows[-1]["ratio"] = first / median(seconds)
    return rows


def _sent_bytes() -> int:
    """Return how many bytes went over the loopback interface."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    counters = next(line for line in lines if line.strip().startswith("lo:"))
    return int(counters.split()[9])
