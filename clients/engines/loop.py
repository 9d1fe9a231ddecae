"""The reference engine: one unit after the other, exactly as in the papers' algorithms."""

from __future__ import annotations

from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Accumulator, Keys, Task
from fedsim.tensors import Tensors


def loop(
    task: Task,
    parameters: Tensors,
    keys: Keys,
    clip: Clip,
    round: int,
) -> WeightedSum:
    """Return Σ w·clip(update), a backward pass (or local training) per unit, in key order."""
    accumulator = Accumulator(parameters, clip)
    for key in keys:
        unit = task.unit(int(key), round)
        accumulator.add(task.update(parameters, unit, round), unit.weight)
    return accumulator.total()
