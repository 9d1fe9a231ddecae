"""The server's own work in a round, per parameter: fold a sum, estimate, draw noise, step."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from experiments.benchmarks.null_client import parameters_of
from experiments.benchmarks.timing import repeated
from fedsim.benchmarking import Row
from fedsim.estimators import FixedDenominator, WeightedSum
from fedsim.noise import gaussian
from fedsim.seeding import stream
from fedsim.server_optimizer import ServerOptimizer
from fedsim.tensors import add, zeros_like

_PARAMETERS = 10_000_000


def run() -> list[Row]:
    """Return the seconds of each part at ten million parameters, and nanoseconds a parameter."""
    parameters = parameters_of(_PARAMETERS)
    sums = {name: torch.ones_like(value, dtype=torch.float64) for name, value in parameters.items()}
    total, part = WeightedSum(sums), WeightedSum(zeros_like(sums))
    estimator = FixedDenominator(0.01, 1_000)
    optimizer = ServerOptimizer("adam", 0.01)
    _, moments = optimizer.step(parameters, sums, {})
    tasks: dict[str, Callable[[], Any]] = {
        "fold": lambda: total.absorb_(part),
        "estimate": lambda: estimator(total),
        "noise": lambda: add(sums, gaussian(sums, 1.0, stream(0, "noise", 0))),
        "adam": lambda: optimizer.step(parameters, sums, moments),
    }
    return [_row(name, repeated(task)) for name, task in tasks.items()]


def _row(name: str, seconds: list[float]) -> Row:
    return Row(
        benchmark="server",
        case=f"{name}/10M",
        seconds=median(seconds),
        repetitions=len(seconds),
        details={"nanoseconds_per_parameter": 1e9 * median(seconds) / _PARAMETERS},
    )
