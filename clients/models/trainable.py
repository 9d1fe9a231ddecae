"""Select the trainable parameters: all, those whose names match, or low-rank adapters."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fedsim.config import ModelConfig
from fedsim.errors import ConfigError, about
from fedsim.utils.files import check_no_pointers
from fedsim.utils.terminal import quietly


def select_trainable(
    names: Sequence[str], pattern: str, *, lora: bool = False, freeze_a: bool = False
) -> list[str]:
    """Return the names to train, in the order given.

    Args:
        names: names of all parameters; a tied parameter is listed once.
        pattern: "all", or a regular expression searched anywhere in a name.
        lora: whether adapters were added; "all" then means all adapters and nothing else, since
            the rest is to stay frozen.
        freeze_a: whether "all" leaves out the adapters' first matrices, A (FFA-LoRA, Sun et al.
            2024, arXiv:2403.12313: with a frozen A, noise enters the product once).

    Raises:
        ConfigError: `pattern` is not a regular expression, or matches no name.

    Examples:
        >>> names = ["wte.weight", "h.0.ln_1.weight", "h.0.attn.weight"]
        >>> select_trainable(names, "wte|ln_")
        ['wte.weight', 'h.0.ln_1.weight']
    """
    if pattern == "all":
        chosen = [name for name in names if not lora or ".lora_" in name]
        return [name for name in chosen if not (freeze_a and _FIRST.search(name))]
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"model.trainable = {pattern!r}: not a regular expression ({error}); "
            'give "all" or a pattern of parameter names'
        ) from None
    matching = [name for name in names if expression.search(name)]
    if not matching:
        raise ConfigError(
            f"model.trainable = {pattern!r}: matches none of the {len(names)} parameters; "
            f"their names begin with {', '.join(names[:8])}"
        )
    return matching


_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_SHOWN = 300  # maximum characters of a reason
_FIRST = re.compile(r"\.lora_(embedding_)?A\.")
_ADAPTED = (nn.Linear, nn.Embedding, Conv1D)


def add_lora(module: PreTrainedModel, config: ModelConfig) -> PeftModel:
    """Return `module` with adapters added; its outputs do not change.

    An adapted weight is W + (α/rank)·B·A, or with α/√rank if `lora_rank_stabilised` (Kalajdzievski
    2023, arXiv:2312.03732). A is drawn from torch's global generator, so call this under
    `torch.random.fork_rng`; B starts at zero. With `dropout` the adapters' inputs go through
    dropout layers.

    Args:
        module: the network; it is changed in place.
        config: `lora_rank` > 0; `lora_alpha`, by default twice the rank; `dropout`, 0 for none;
            `lora_target_modules`, by default peft's for the architecture. If peft has no default:
            all linear layers except the output layer; in a mixture of experts, those of attention.

    Raises:
        ConfigError: no module has a given name, or its kind does not support adapters.
    """
    targets = list(config.lora_target_modules)
    parts = {f".{name}": part for name, part in module.named_modules()}
    linear = [name for name, part in parts.items() if isinstance(part, _ADAPTED)]
    known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
    for target in targets:  # peft refuses only if no target exists at all
        if not any(name.endswith(f".{target}") for name in parts):
            raise ConfigError(
                f"model.lora_target_modules = {targets}: no layer has the name {target!r}. "
                f"Known: {known}"
            )
    adapters = LoraConfig(
        # fedsim's own networks cannot generate text, and peft's class for causal LMs needs that.
        task_type="CAUSAL_LM" if hasattr(module, "prepare_inputs_for_generation") else None,
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        use_rslora=config.lora_rank_stabilised,
        lora_dropout=config.dropout,
        target_modules=targets or _default_targets(module),
        fan_in_fan_out=any(isinstance(part, Conv1D) for part in module.modules()),
    )
    try:
        with quietly():
            return get_peft_model(module, adapters)
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"model.lora_target_modules = {targets}: {reason} Known: {known}"
        ) from error


def _default_targets(module: PreTrainedModel) -> list[str] | str:
    known = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(module.config.model_type)
    if known is not None:
        return cast("list[str] | str", known)
    # For all linear layers of a mixture of experts, peft would also adapt the stacked weights.
    weights = module.named_parameters()
    if not any(".experts." in name and value.ndim > 2 for name, value in weights):
        return "all-linear"
    inside, outside = set[str](), set[str]()
    for name, part in module.named_modules():
        if type(part) is nn.Linear:
            (inside if "attn" in name else outside).add(name.rpartition(".")[2])
    return sorted(inside - outside) or "all-linear"


def open_adapter(module: PreTrainedModel, folder: str, base: str) -> PeftModel:
    """Return `module` with the adapters of a folder.

    Args:
        module: the network; it is changed in place.
        folder: folder written by peft: adapter_config.json and weights as safetensors.
        base: name or path of `module`, for errors.

    Raises:
        ConfigError: the folder does not exist, the adapters are not LoRA, or they do not fit this
            network: unknown modules, other sizes, or missing or extra adapters.
    """
    path = Path(folder).expanduser()
    field = f"model.adapter = {folder!r}"
    missing = [name for name in _ADAPTER_FILES if not (path / name).is_file()]
    if missing:
        raise ConfigError(f"{field}: there is no {missing[0]}; give a folder that peft saved")
    with about(f"{field}: "):
        check_no_pointers(path / name for name in _ADAPTER_FILES)
    try:
        with quietly():
            settings = PeftConfig.from_pretrained(str(path))
            if not isinstance(settings, LoraConfig):
                raise ConfigError(f"{field}: {settings.peft_type} adapters; only LoRA is read")
            adapted = get_peft_model(module, settings)
            loaded = adapted.load_adapter(str(path), "default")
    except ConfigError:
        raise
    except (RuntimeError, ValueError, TypeError, KeyError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:_SHOWN]
        raise ConfigError(f"{field}: does not fit {base!r}: {reason}") from error
    absent = [name for name in loaded.missing_keys if ".lora_" in name]
    if wrong := [*absent, *loaded.unexpected_keys]:
        raise ConfigError(f"{field}: belongs to another network than {base!r}: {wrong[0]}")
    return cast(PeftModel, adapted)


def check_merges(module: nn.Module, config: ModelConfig) -> None:
    """Raise `ConfigError` if the merged network would differ from the trained network.

    If two modules share a weight (such as the embedding and the output layer), only one of them is
    adapted, but merging would change both.
    """
    places = Counter(id(value) for _, value in module.named_parameters(remove_duplicate=False))
    for name, part in module.named_modules():
        weight = getattr(getattr(part, "base_layer", None), "weight", None)
        if weight is not None and places[id(weight)] > 1:
            targets = list(config.lora_target_modules)
            field = f"lora_target_modules = {targets}"
            if config.adapter is not None:
                field = f"adapter = {config.adapter!r}"
            raise ConfigError(
                f"model.{field}: the weight of "
                f"{name.removeprefix('base_model.model.')!r} is also that of another module, which "
                "merging would change too; adapt another layer, or give model.merged = false"
            )
