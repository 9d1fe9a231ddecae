"""Choose a gradient engine: by name, or by the model, the units and the memory."""

from __future__ import annotations

import logging
import re
from typing import cast

from transformers import PretrainedConfig

from fedsim.clients.engines.loop import loop
from fedsim.clients.engines.per_example import chunks
from fedsim.clients.engines.per_example.capture import NotCovered, OpenModel, find_layers
from fedsim.clients.engines.per_example.ghost import ghost
from fedsim.clients.engines.per_example.materialised import materialised
from fedsim.clients.engines.per_example.verification import made_up_unit
from fedsim.clients.engines.stacked.engine import StackedEngine
from fedsim.clients.engines.vmap import VmapEngine
from fedsim.clients.tasks.fedavg import LocalSGD
from fedsim.errors import ConfigError
from fedsim.execution import Engine, Task
from fedsim.language_model import LanguageModel, module_of

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
    """Return the engine of a config's `executor.engine` for this task and model.

    "auto" is chosen by the model and the memory, of mean gradients by the tokens of a unit, too.
    The log says which engine it is, and why. A plug-in's own local training is computed by `loop`.

    Args:
        name: "auto", "loop", "vmap", "materialised" or "ghost"; the config has checked it.
        task: what units compute.
        model: the model that they compute it with.
        tokens_per_unit: the most tokens of a unit, a public number: the choice of the engine must
            not depend on private text. None stands for units of a large pass.
        gpu_share: the part of a GPU's memory that one worker may take.

    Raises:
        ConfigError: "vmap" was asked for, and torch cannot vectorise the network.
    """
    num_bytes = chunks.memory_budget(model.device, gpu_share)
    if name == "auto" and task.averages_gradients:
        name = _chosen(model, tokens_per_unit or _LARGE_PASS, num_bytes)
    elif name == "auto" and getattr(type(task), "update", None) is LocalSGD.update:
        return _for_local_training(model, num_bytes)
    elif name == "vmap" and (refused := _vmap_refused(model)) is not None:
        raise ConfigError(
            f'executor.engine = "vmap": torch cannot vectorise {model.name!r}: {refused}; take '
            '"auto" or "loop"'
        )
    if name == "vmap":
        return VmapEngine(model)
    if name == "materialised":
        return materialised(cast(OpenModel, model), num_bytes, tokens_per_unit)
    if name == "ghost":
        return ghost(cast(OpenModel, model), num_bytes, tokens_per_unit)
    return loop


def _chosen(model: LanguageModel, tokens_per_unit: float, budget: int) -> str:
    """Return the engine of "auto" for mean gradients, and log why."""
    parameters = model.initial_parameters()
    num_bytes = sum(value.nbytes for value in parameters.values())
    name, reason = choice(tokens_per_unit, num_bytes, budget), ""
    if _chooses_experts(model):
        name, reason = "loop", "; rounding in a shared pass can tip a token's choice of experts"
    elif (uncovered := _uncovered(model)) is not None:
        name, reason = "vmap", f"; no layer rule for {uncovered}"
        if (refused := _vmap_refused(model)) is not None:
            name, reason = "loop", f"{reason}, and vmap cannot: {refused}"
    log.info(
        "%s: engine %s, for %d trainable parameters (%.0f MB a unit), up to %.0f tokens a unit "
        "and %.0f MB for a chunk on %s%s",
        model.name,
        name,
        sum(value.numel() for value in parameters.values()),
        num_bytes / 1e6,
        tokens_per_unit,
        budget / 1e6,
        model.device,
        reason,
    )
    return name


def _for_local_training(model: LanguageModel, num_bytes: int) -> Engine:
    """Return the engine of "auto" for `LocalSGD`, and log why."""
    try:
        if _chooses_experts(model):
            raise NotCovered("experts: rounding in a shared pass can tip a token's choice")
        engine = StackedEngine(cast(OpenModel, model), num_bytes)
    except NotCovered as layer:
        log.info("%s: engine loop; no layer rule for %s", model.name, layer)
        return loop
    if engine.most_users < 2:
        log.info("%s: engine loop; no room for two users' parameters", model.name)
        return loop
    log.info("%s: engine stacked, of %d users at most", model.name, engine.most_users)
    return engine


def _vmap_refused(model: LanguageModel) -> str | None:
    """Return why torch cannot vectorise the model; tried on made-up tokens, never on a text."""
    if (attention := getattr(model, "attention", "eager")) != "eager":
        return f"attention {attention}"
    start = {key: value.to(model.device) for key, value in model.initial_parameters().items()}
    return VmapEngine(model).refused(start, made_up_unit(model))


def choice(tokens_per_unit: float, bytes_per_unit: int, budget: int) -> str:
    """Return the engine for a model with layer rules.

    `materialised` where a unit is a large pass by itself, or the gradients of a large pass's units
    fit half of `budget`; else `ghost`.

    Examples:
        >>> choice(tokens_per_unit=100, bytes_per_unit=4_000_000, budget=2_000_000_000)
        'materialised'
        >>> choice(tokens_per_unit=100, bytes_per_unit=500_000_000, budget=2_000_000_000)
        'ghost'
        >>> choice(tokens_per_unit=5000, bytes_per_unit=4_000_000_000, budget=2_000_000_000)
        'materialised'
    """
    units = max(1, budget // 2 // max(1, bytes_per_unit))
    return "materialised" if units * tokens_per_unit >= _LARGE_PASS else "ghost"


def _uncovered(model: LanguageModel) -> str | None:
    """Return the first layer without a rule, or None."""
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
