"""Low-rank adapters (Hu et al. 2021) through peft: added to a copy, merged for saving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from clients.quiet import quietly
from fedsim.errors import ConfigError

_ADAPTED = (nn.Linear, nn.Embedding, Conv1D)


def add_lora(
    module: PreTrainedModel, rank: int, targets: Sequence[str] = (), dropout: float = 0.0
) -> PeftModel:
    """Return `module` with adapters of `rank` > 0 inside; it computes what it computed before.

    An adapted weight is W + 2·B·A: A is drawn from torch's global generator (so call this
    under `torch.random.fork_rng`), B starts at zero. With
    `dropout` the adapters' inputs go through dropout layers.

    Args:
        module: the network; it is changed in place.
        rank: of the adapters.
        targets: ends of the names of the modules to adapt; by default peft's for the architecture,
            or every linear layer but the output layer where peft has none.
        dropout: the probability of those layers; 0 for none.

    Raises:
        ConfigError: no module is called so, or it is of a kind that has no adapter.
    """
    default = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(
        module.config.model_type, "all-linear"
    )
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=dropout,
        target_modules=list(targets) or default,
        fan_in_fan_out=any(isinstance(part, Conv1D) for part in module.modules()),
    )
    try:
        with quietly():
            return get_peft_model(module, config)
    except ValueError as error:
        linear = {name for name, part in module.named_modules() if isinstance(part, _ADAPTED)}
        known = sorted({name.rpartition(".")[2] for name in linear})
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"model.lora_target_modules = {list(targets)}: {reason} Known: {', '.join(known)}"
        ) from error


def merged(module: nn.Module) -> PreTrainedModel:
    """Return the plain network with the adapters' products added to its weights.

    Works in place on a `PeftModel`; anything else is returned as it is.
    """
    plain = module.merge_and_unload() if isinstance(module, PeftModel) else module
    return cast(PreTrainedModel, plain)
