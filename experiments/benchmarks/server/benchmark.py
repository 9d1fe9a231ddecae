"""Times of the server's work in a round: fold a sum, estimate, step, draw noise."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from fedsim.estimators import FixedDenominator, WeightedSum
from fedsim.experiments.benchmarks.grids.null_client import parameters_of
from fedsim.experiments.benchmarks.timing import repeated
from fedsim.noise import add_gaussian_
from fedsim.seeding import secret_stream, stream
from fedsim.server_optimizer import ServerOptimizer
from fedsim.tensors import zeros_like
from fedsim.utils.machine import Row, interleaved

_TURNS = 7


def run(parameters: int = 10_000_000) -> list[Row]:
    """Return the seconds of each part, and its nanoseconds per parameter."""
    values = parameters_of(parameters)
    sums = {name: torch.ones_like(value, dtype=torch.float64) for name, value in values.items()}
    total, part = WeightedSum(sums), WeightedSum(zeros_like(sums))
    noised = zeros_like(sums)
    estimator = FixedDenominator(0.01, 1_000)
    optimizer = ServerOptimizer("adam", 0.01)
    _, moments = optimizer.step(values, sums, {})
    tasks: dict[str, Callable[[], Any]] = {
        "fold": lambda: total.absorb_(part),
        "estimate": lambda: estimator(total),
        "adam": lambda: optimizer.step(values, sums, moments),
    }
    rows = [_row(name, median(repeated(task, _TURNS)), parameters) for name, task in tasks.items()]
    sources: dict[str, Callable[[], Any]] = {
        "noise, seeded": lambda: add_gaussian_(noised, 1.0, stream(0, "noise", 0)),
        "noise, secure": lambda: add_gaussian_(noised, 1.0, secret_stream()),
    }
    interleaved(sources, [*sources])  # not counted
    noise = interleaved(sources, [*sources] * _TURNS)
    slowest = noise["noise, seeded"]
    return rows + [
        _row(name, seconds, parameters, slowest / seconds) for name, seconds in noise.items()
    ]


def _row(name: str, seconds: float, parameters: int, ratio: float | None = None) -> Row:
    return Row(
        benchmark="server",
        case=name,
        seconds=seconds,
        ratio=ratio,
        repetitions=_TURNS,
        details={
            "parameters": parameters,
            "nanoseconds_per_parameter": 1e9 * seconds / parameters,
        },
    )
