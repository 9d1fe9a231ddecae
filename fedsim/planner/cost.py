"""Estimate time and memory of a planned run, from gradients that were timed."""

from __future__ import annotations

from dataclasses import dataclass

from fedsim.planner.candidates import Candidate
from fedsim.planner.compare_strategies import StrategyComparison
from fedsim.utils.machine import peak_memory_bytes

# Server-side bytes a trained parameter: itself (float32), the sum and the estimate (float64).
_BYTES = 4 + 8 + 8
_OPTIMIZER_BYTES = {"sgd": 0, "adam": 8, "adafactor": 0}  # two float32 moments; rows and columns

TIME_NOTE = (
    "Time: gradients as they were just timed here, one unit after the other on this process's "
    "threads, times their expected number; a run's engine takes many units at once and is mostly "
    "faster; server, evaluation and checkpoints are left out."
)
MEMORY_NOTE = (
    "Memory: this process's peak while planning (program, model, one unit's gradient), and the "
    "server's tensors for the trained parameters (value, sum, estimate, optimizer)."
)


@dataclass(frozen=True)
class Cost:
    """Of one strategy; None where nothing was timed."""

    gradients_per_round: float
    seconds_per_gradient: float | None
    seconds_per_round: float | None
    seconds: float | None
    memory_bytes: int | None


def cost(comparison: StrategyComparison, candidate: Candidate) -> Cost:
    """Return what the run of a candidate takes, both candidates at the same B."""
    config = candidate.config
    each = comparison.seconds_per_gradient[candidate.noise.strategy]
    a_round = None if each is None else each * comparison.budget
    d = comparison.norms.gradients.num_parameters
    server = d * (_BYTES + _OPTIMIZER_BYTES[config.server.optimizer])
    return Cost(
        gradients_per_round=comparison.budget,
        seconds_per_gradient=each,
        seconds_per_round=a_round,
        seconds=None if a_round is None else a_round * config.strategy.rounds,
        memory_bytes=None if each is None else peak_memory_bytes() + server,
    )
