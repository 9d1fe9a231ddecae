"""Which engine computes: by name, or the fastest that can."""

from __future__ import annotations

import logging

from clients.engines.loop import loop
from clients.engines.vmap import VmapEngine
from fedsim.clipping import Clip
from fedsim.estimators import WeightedSum
from fedsim.execution import Engine, Keys, Task
from fedsim.language_model import LanguageModel
from fedsim.tensors import Tensors

log = logging.getLogger(__name__)


def choose_engine(name: str, task: Task, model: LanguageModel) -> Engine:
    """Return the engine of that name for this task and model.

    "auto" is `vmap` where the update is a mean gradient, and `loop` for local training and for
    models that torch cannot vectorise. The config has checked the name.
    """
    if name == "vmap":
        return VmapEngine(model)
    if name == "loop" or not task.averages_gradients:
        return loop
    return _VmapOrLoop(model)


class _VmapOrLoop:
    """Vectorised until torch says that it cannot; then the loop, with a warning, for good."""

    def __init__(self, model: LanguageModel) -> None:
        self._engine: Engine = VmapEngine(model)
        self._model = model

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
