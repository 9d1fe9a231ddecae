"""Choose a gradient engine: by name, or by the model, the units and the memory."""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import cast

from transformers import PretrainedConfig

from fedsim.clients.engines.clipped_sums import norm_error
from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example import chunks
from fedsim.clients.engines.per_example.capture import NotCovered, OpenModel, find_layers
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.engines.per_example.verification import made_up_unit
from fedsim.clients.engines.vmap import VmapEngine
from fedsim.clients.models.mixed_precision import in_float32
from fedsim.clipping import Clip
from fedsim.errors import ConfigError
from fedsim.estimators import WeightedSum
from fedsim.execution import Engine, Keys, Task
from fedsim.language_model import LanguageModel, module_of
from fedsim.tensors import Tensors

log = logging.getLogger(__name__)

# Experts, num_local_experts, GraniteMoeRouter, is_moe, DogeCDMoE.
_EXPERTS = re.compile(r"[Ee]xpert|[Rr]outer|Mo[eE]|(^|_)moe(_|$)")
# From so many tokens on, one unit's pass is as efficient as one over many units.
_LARGE_PASS = 1024


def choose_engine(
    name: str,
    task: Task,
    model: LanguageModel,
    tokens_per_unit: float | None = None,
    gpu_share: float = 1.0,
) -> Engine:
    """Return the engine of that name for this task and model.

    Args:
        name: "auto" is `loop` for local training, and `Auto` for mean gradients. The config has
            checked it. The last bits of a gradient depend on the shape of the pass that computes
            it, hence on who shares the pass; local steps can make any distance of that, so each
            user takes them alone.
        task: what units compute.
        model: the model that they compute it with.
        tokens_per_unit: the most tokens of a unit, a public number: the choice of the engine must
            not depend on private text. None stands for units of a large pass.
        gpu_share: of a GPU's memory, what one worker may take. In bfloat16 that decides, and not
            what is free: workers with other engines or sizes of passes would give a unit other
            gradients, and who else is there decides which worker computes it.

    Raises:
        ConfigError: "vmap" was asked for, and torch cannot vectorise the network.
    """
    if name == "auto":
        return Auto(model, tokens_per_unit, gpu_share) if task.averages_gradients else loop
    if name == "vmap":  # `Auto` has asked
        start = {key: v.to(model.device) for key, v in model.initial_parameters().items()}
        if refused := VmapEngine(model).refused(start, made_up_unit(model)):
            raise ConfigError(
                f'executor.engine = "vmap": torch cannot vectorise {model.name!r}: {refused}; take '
                '"auto" or "loop"'
            )
    return _engine(name, model, tokens_per_unit, gpu_share)


def _engine(
    name: str, model: LanguageModel, tokens_per_unit: float | None, gpu_share: float
) -> Engine:
    if name == "loop":
        return loop
    if name == "vmap":
        return VmapEngine(model)
    opened = cast(OpenModel, model)
    num_bytes = chunks.public_budget(model.device, gpu_share) if _is_narrow(model) else None
    if name == "ghost":
        return ghost(opened, num_bytes)
    return materialised(opened, num_bytes, tokens_per_unit)


def _is_narrow(model: LanguageModel) -> bool:
    return in_float32(model) is not model


class Auto:
    """Engine for mean gradients that is chosen at the first call; the log says which and why."""

    def __init__(
        self,
        model: LanguageModel,
        tokens_per_unit: float | None = None,
        gpu_share: float = 1.0,
    ) -> None:
        self._model = model
        self._tokens_per_unit = tokens_per_unit
        self._gpu_share = gpu_share
        self._engine: Engine | None = None

    def __call__(
        self, task: Task, parameters: Tensors, keys: Keys, clip: Clip, round: int
    ) -> WeightedSum:
        """Return what every engine returns."""
        if self._engine is None:
            self._engine = self._choose(parameters, self._tokens_per_unit or _LARGE_PASS)
        return self._engine(task, parameters, keys, clip, round)

    def _choose(self, parameters: Tensors, tokens_per_unit: float) -> Engine:
        num_bytes = sum(value.nbytes for value in parameters.values())
        device, narrow = self._model.device, _is_narrow(self._model)
        budget = (
            chunks.public_budget(device, self._gpu_share)
            if narrow
            else chunks.memory_budget(device)
        )
        name, reason = choice(tokens_per_unit, num_bytes, budget), ""
        if _chooses_experts(self._model):
            name, reason = "loop", "; rounding in a shared pass can tip a token's choice of experts"
        elif (uncovered := _uncovered(self._model)) is not None:
            name, reason = "vmap", f"; no layer rule for {uncovered}"
            if narrow:
                name, reason = "loop", f"{reason}, and in bfloat16 others would move its rounding"
            elif (refused := self._vmap_refused(parameters)) is not None:
                name, reason = "loop", f"{reason}, and vmap cannot: {refused}"
        elif narrow and name == "ghost":
            name, reason = "loop", "; one product of many units' bfloat16 is rounded by too much"
        entries = sum(value.numel() for value in parameters.values())
        log.info(
            "%s: engine %s, for %d trainable parameters (%.0f MB a unit), up to %.0f tokens a unit "
            "and %.0f MB for a chunk on %s%s",
            self._model.name,
            name,
            entries,
            num_bytes / 1e6,
            tokens_per_unit,
            budget / 1e6,
            device,
            reason,
        )
        if name == "loop":
            # A worker with more memory free may take another engine, and who else is there
            # decides which worker computes a unit: all clip with the same margin.
            return partial(loop, norm_error=norm_error(parameters))
        return _engine(name, self._model, self._tokens_per_unit, self._gpu_share)

    def _vmap_refused(self, parameters: Tensors) -> str | None:
        """Return why torch cannot vectorise the model; tried on made-up tokens, never on a text."""
        if (attention := getattr(self._model, "attention", "eager")) != "eager":
            return f"attention {attention}"
        return VmapEngine(self._model).refused(parameters, made_up_unit(self._model))


def choice(tokens_per_unit: float, bytes_per_unit: int, budget: int) -> str:
    """Return the engine for a model with layer rules.

    `materialised` while the gradients of a large pass's units fit half of `budget`; of larger
    gradients, `loop` where each unit is a large pass by itself, and `ghost` for small units.

    Examples:
        >>> choice(tokens_per_unit=100, bytes_per_unit=4_000_000, budget=2_000_000_000)
        'materialised'
        >>> choice(tokens_per_unit=100, bytes_per_unit=500_000_000, budget=2_000_000_000)
        'ghost'
        >>> choice(tokens_per_unit=5000, bytes_per_unit=4_000_000_000, budget=2_000_000_000)
        'loop'
    """
    units_that_fit = budget // 2 // max(1, bytes_per_unit)
    if units_that_fit >= 2 and units_that_fit * tokens_per_unit >= _LARGE_PASS:
        return "materialised"
    return "loop" if tokens_per_unit >= _LARGE_PASS else "ghost"


def _uncovered(model: LanguageModel) -> str | None:
    """Return the first layer without a rule, or None."""
    if not hasattr(model, "module") or not hasattr(model, "places"):
        return "any layer of a network that does not show its modules"
    try:
        find_layers(cast(OpenModel, model))
    except NotCovered as layer:
        return str(layer)
    return None


def _chooses_experts(model: LanguageModel) -> bool:
    """Return whether tokens choose experts: a step, which the last bits of a pass can decide.

    The bits depend on who shares the pass, so that a user could move others' gradients. Known by
    the names of its parts or of its settings, as mixtures of experts have none in common.
    """
    module = module_of(model)
    config = getattr(module, "config", None)
    settings = config.to_dict() if isinstance(config, PretrainedConfig) else {}
    names = [type(part).__name__ for part in module.modules()]
    names += [name for name, value in settings.items() if value not in (None, 0, 1, False)]
    return any(_EXPERTS.search(name) for name in names)
