"""The reference engine: one unit after the other, exactly as the algorithms are printed."""

from __future__ import annotations

import logging

from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Accumulator, Engine, Keys, Task
from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors

log = logging.getLogger(__name__)


def loop(
    task: Task,
    parameters: Tensors,
    keys: Keys,
    clip: Clip,
    round: int,
    *,
    norm_error: float = 0.0,
) -> WeightedSum:
    """Return Σ w·clip(update), a backward pass (or local training) per unit, in key order.

    With `norm_error` the clip keeps the margin of the engine that this one replaces.
    """
    accumulator = Accumulator(parameters, clip, norm_error=norm_error)
    for key in keys:
        unit = task.unit(int(key), round)
        accumulator.add(task.update(parameters, unit, round), unit.weight)
    return accumulator.total()


class VectorisedOrLoop:
    """A vectorised engine until torch raises; from then on `loop`, with one warning."""

    def __init__(self, model: LanguageModel, engine: Engine) -> None:
        self._model = model
        self._engine = engine

    def __call__(
        self, task: Task, parameters: Tensors, keys: Keys, clip: Clip, round: int
    ) -> WeightedSum:
        """Return what either engine returns."""
        try:
            return self._engine(task, parameters, keys, clip, round)
        except (RuntimeError, NotImplementedError) as error:
            if self._engine is loop:
                raise
            reason = str(error).splitlines()[0]
            log.warning("%s: vmap cannot, computing by loop: %s", self._model.name, reason)
            self._engine = loop
            return loop(task, parameters, keys, clip, round)
