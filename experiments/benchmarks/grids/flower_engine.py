"""Times of Flower's simulation engine on rounds without gradients, in its own process.

`python -m fedsim.experiments.benchmarks.grids.flower_engine '{"parameters": 1000000, "nodes": 200,
"rounds": 4, "stock": true}'` prints the seconds of each round as a JSON list on the last line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fedsim.experiments.benchmarks.grids.null_client import CLIP, null_spec, parameters_of
from fedsim.experiments.benchmarks.grids.null_client import app as client_app
from fedsim.experiments.benchmarks.timing import interleaved
from fedsim.grids.executor import GridExecutor, wait_for_nodes


class TimedFedAvg(FedAvg):
    """Flower's FedAvg over all nodes; records when a round begins and ends."""

    def __init__(self, nodes: int) -> None:
        super().__init__(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=nodes)
        self.seconds: list[float] = []
        self._begun = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Record the start of a round."""
        self._begun = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Record the end of a round."""
        result = super().aggregate_train(server_round, replies)
        self.seconds.append(time.perf_counter() - self._begun)
        return result


def rounds_of(grid: Grid, parameters: int, nodes: int, rounds: int, stock: bool) -> list[float]:
    """Return the seconds of each round.

    Args:
        grid: Flower's grid.
        parameters: number of parameters sent to the clients and back.
        nodes: number of clients.
        rounds: number of rounds.
        stock: whether to use Flower's FedAvg with one message per node; else fedsim's executor
            with its shards, over a cohort of 200 users.
    """
    values = parameters_of(parameters)
    wait_for_nodes(grid, nodes)
    if stock:
        strategy = TimedFedAvg(nodes)
        strategy.start(grid, ArrayRecord(values), num_rounds=rounds)
        return strategy.seconds
    executor = GridExecutor(grid, null_spec())
    one_round = partial(executor.clipped_sum, values, np.arange(200), CLIP, 0)
    return interleaved({"": one_round}, [""] * rounds)[""]


def main(settings: dict[str, Any]) -> None:
    """Measure and print."""
    server, seconds = ServerApp(), []

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        seconds.extend(rounds_of(grid, **settings))

    run_simulation(  # deprecated in favour of `flwr run`, which uses this engine
        server,
        client_app,
        num_supernodes=settings["nodes"],
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"address": "local", "include_dashboard": False},
        },
    )
    sys.stdout.write(json.dumps(seconds) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    main(json.loads(sys.argv[1]))
