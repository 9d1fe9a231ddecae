"""Times of a round without its gradients, on fedsim's grids and Flower's simulation engine.

Rounds without computation show the framework's cost: parameters go out, a sum of the same size
comes back. Flower's users run FedAvg with one client per message. Two more settings split the
difference: Flower's engine with fedsim's shards, and fedsim's grids with one-user shards.
"""

from __future__ import annotations

import json
from statistics import median

import numpy as np
from flwr.serverapp import Grid

from fedsim.experiments.benchmarks.grids.bytes import what_travels
from fedsim.experiments.benchmarks.grids.compute_bound import throughput
from fedsim.experiments.benchmarks.grids.null_client import (
    CLIP,
    NAME,
    app,
    null_spec,
    parameters_of,
)
from fedsim.experiments.benchmarks.grids.population import population_round
from fedsim.experiments.benchmarks.grids.whole_round import whole_rounds
from fedsim.experiments.benchmarks.timing import REPETITIONS, Row, in_own_process, repeated, row_of
from fedsim.grids.executor import GridExecutor
from fedsim.grids.in_process import InProcessGrid
from fedsim.grids.ray_cluster import Share
from fedsim.grids.ray_grid import RayGrid

_SIZES = {"1M": 1_000_000, "10M": 10_000_000}
_COHORT = 200
_FEWER = 20  # one-user messages of ten million parameters: a round of 200 would take a minute
_OFTEN = 20  # repetitions of short rounds; some are slow as a store allocates fresh memory
_TWO = Share(workers=2, cpus=1.0, gpus=0.0)


def run() -> list[Row]:
    """Return the seconds of a round for each case, on all grids in turn."""
    rows: list[Row] = []
    for name, parameters in _SIZES.items():
        rows += _case(name, parameters)
    rows += [what_travels(_TWO), population_round(_TWO), *throughput()]
    return [*rows, *whole_rounds()]


def _case(name: str, parameters: int) -> list[Row]:
    single = _COHORT if parameters <= _SIZES["1M"] else _FEWER
    rows = []

    def measured(engine: str, users: int, seconds: list[float]) -> None:
        details = {"users": users, "milliseconds_per_user": 1e3 * median(seconds) / users}
        rows.append(row_of("grids", f"round/{name}", engine, seconds, details=details))

    measured("in-process", _COHORT, _rounds(InProcessGrid(app), parameters, _COHORT, 0, _OFTEN))
    measured(
        "in-process, a user a message", single, _rounds(InProcessGrid(app), parameters, single, 1)
    )
    with RayGrid(NAME, _TWO) as grid:
        measured("ray", _COHORT, _rounds(grid, parameters, _COHORT, 0, _OFTEN))
        measured("ray, a user a message", single, _rounds(grid, parameters, single, 1))
    measured("flower, fedsim's shards", _COHORT, _flower(parameters, nodes=2, stock=False))
    measured("flower, a user a message", single, _flower(parameters, nodes=single, stock=True))
    return with_ratios(rows)


def with_ratios(rows: list[Row]) -> list[Row]:
    """Add each row's speed-up per user over Flower's own way, which is the last row."""
    slowest = rows[-1]["details"]["milliseconds_per_user"]
    for row in rows:
        row["ratio"] = slowest / row["details"]["milliseconds_per_user"]
    return rows


def _rounds(
    grid: Grid, parameters: int, users: int, shard_size: int, repetitions: int = REPETITIONS
) -> list[float]:
    executor = GridExecutor(grid, null_spec(), shard_size)
    values, cohort = parameters_of(parameters), np.arange(users)
    return repeated(lambda: executor.clipped_sum(values, cohort, CLIP, 0), repetitions)


def _flower(parameters: int, nodes: int, stock: bool) -> list[float]:
    """Return the seconds of Flower's rounds except the first, in a process without our Ray."""
    settings = {"parameters": parameters, "nodes": nodes, "rounds": 4, "stock": stock}
    module = "fedsim.experiments.benchmarks.grids.flower_engine"
    seconds: list[float] = in_own_process(module, json.dumps(settings))
    return seconds[1:]
