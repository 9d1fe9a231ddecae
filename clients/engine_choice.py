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
# From this number of tokens, a pass of one unit is as efficient as a pass of many units.
_LARGE_PASS = 1024


def choose_engine(
    name: str,
    task: Task,
    model: LanguageModel,
    tokens_per_unit: float | None = None,
    gpu_share: float = 1.0,
) -> Engine:
    """Return the engine of a config's `executor.engine` for this task and model.

    "auto" depends on the model and the memory, and for mean gradients also on the tokens of a unit.
    The log says which engine it is, and why. A plug-in's own local training is computed by `loop`.

    Args:
        name: "auto", "loop", "vmap", "materialised" or "ghost"; already validated.
        task: task of the units.
        model: model of the run.
        tokens_per_unit: maximum number of tokens of a unit, a public number: the choice must not
            depend on private text. None: each unit is large enough for its own pass.
        gpu_share: share of a GPU's memory that one worker may use.

    Raises:
        ConfigError: `name` is "vmap", and torch cannot vectorise the network.
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
    """Return the engine that "auto" chooses for mean gradients, and log the reason."""
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
    """Return the engine that "auto" chooses for `LocalSGD`, and log the reason."""
    try:
        if _chooses_experts(model):
            raise NotCovered("a token's choice of experts, which rounding in a shared pass can tip")
        engine = StackedEngine(cast(OpenModel, model), num_bytes)
    except NotCovered as layer:
        log.info("%s: engine loop; not side by side: %s", model.name, layer)
        return loop
    if engine.most_users < 2:
        log.info("%s: engine loop; no room for two users' parameters", model.name)
        return loop
    log.info("%s: engine stacked, of %d users at most", model.name, engine.most_users)
    return engine


def _vmap_refused(model: LanguageModel) -> str | None:
    """Return why torch cannot vectorise the model, or None; tried on made-up tokens only."""
    if (attention := getattr(model, "attention", "eager")) != "eager":
        return f"attention {attention}"
    start = {key: value.to(model.device) for key, value in model.initial_parameters().items()}
    return VmapEngine(model).refused(start, made_up_unit(model))


def choice(tokens_per_unit: float, bytes_per_unit: int, budget: int) -> str:
    """Return the engine for a model with layer rules.

    `materialised` if one unit fills a large pass, or if the gradients of all units of such a pass
    fit in half of `budget`; else `ghost`.

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
    """Return whether the model routes tokens to experts (mixture of experts).

    Rounding in a shared pass can change the choice of an expert, so one user's text could change
    other users' gradients. Found by names of modules and settings: these models share no class.
    """
    module = module_of(model)
    config = getattr(module, "config", None)
    settings = config.to_dict() if isinstance(config, PretrainedConfig) else {}
    names = [type(part).__name__ for part in module.modules()]
    names += [name for name, value in settings.items() if value not in (None, 0, 1, False)]
    return any(_EXPERTS.search(name) for name in names)
