"""Load a pre-trained model: a transformers folder, a GGUF file or a hub id."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

import fedsim.clients.models.mcmahan_lstm  # noqa: F401  (registers the model type)
from fedsim import registry
from fedsim.clients.models.model_files import check_folder
from fedsim.clients.models.transformers_model import TransformersModel
from fedsim.config import ModelConfig
from fedsim.errors import ConfigError, nearest
from fedsim.utils.files import check_no_pointers, shown_name
from fedsim.utils.machine import memory_for_this_process
from fedsim.utils.terminal import logging_warnings

_MASK = re.compile(r"(attn|attention)\.(masked_bias|bias|causal_mask)$")


def load(
    config: ModelConfig, *, seed: int = 0, sequence_length: int = 64, device: str = "cpu"
) -> TransformersModel:
    """Load a causal language model and its tokenizer in float32.

    Code that comes with a model is never run: only architectures in transformers can be opened.

    Args:
        config: model config; `name_or_path` is a folder, a `.gguf` file (needs the package `gguf`)
            or a hub id.
        seed: seed of the run; it determines the initial adapters.
        sequence_length: maximum length of an example, in tokens.
        device: device of the logits, in torch's notation.

    Raises:
        ConfigError: the model is not found, cannot be read or has no network, or a key does not
            apply to it.
    """
    name = config.name_or_path
    if config.pretraining_steps is not None:
        raise ConfigError(
            f"model.pretraining_steps = {config.pretraining_steps}: only a built-in model is "
            f"pre-trained here, and {name!r} is not built in; leave the key out"
        )
    module, tokenizer = open_pretrained(name, "auto" if config.quantisation else torch.float32)
    shown = shown_name(name)
    origin = (
        f"The starting point and the vocabulary are those of {shown!r}; "
        "fedsim does not know what text they were trained on."
    )
    return TransformersModel(
        module,
        tokenizer,
        config,
        origin=origin,
        seed=seed,
        sequence_length=sequence_length,
        device=device,
    )


def open_pretrained(
    name: str, dtype: torch.dtype | str = torch.float32
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Open a folder, a GGUF file or a hub id; library warnings become log lines.

    Attention is "eager", whatever the files say; `TransformersModel` sets the final kind.

    Args:
        name: path or hub id.
        dtype: type of the weights; "auto" for the type in the files. GGUF is unpacked to float32.

    Raises:
        ConfigError: the model cannot be opened; the message says why.
    """
    path = Path(name).expanduser()
    if _looks_like_a_path(name) and not path.exists():
        raise ConfigError(f"model.name_or_path = {name!r}: there is no such file or folder")
    source = str(path) if path.exists() else name
    options: dict[str, Any] = {"trust_remote_code": False}
    loading: dict[str, Any] = {"dtype": dtype}
    if path.suffix == ".gguf" and path.is_file():
        source, options = str(path.parent), {**options, "gguf_file": path.name}
        loading = {"dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
    else:
        loading |= {"use_safetensors": True, "ignore_mismatched_sizes": True}
    try:
        with logging_warnings():
            if path.is_dir():
                check_folder(path)
            elif path.exists():
                check_no_pointers([path])
            config = AutoConfig.from_pretrained(source, **options)
            config._attn_implementation = "eager"
            _check_memory(config, loading["dtype"])
            opened: Any = AutoModelForCausalLM.from_pretrained(
                source, config=config, output_loading_info=True, **loading, **options
            )
            module, loaded = opened
            _check_all_used(module, loaded)
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            _forget_quantisation(module)
    except MemoryError as error:
        raise ConfigError(f"model.name_or_path = {name!r}: {error}") from None
    except Exception as error:  # transformers and its dependencies raise many kinds of errors
        raise ConfigError(_explain(name, error)) from error
    return module, tokenizer


def _check_memory(config: PreTrainedConfig, dtype: torch.dtype | str) -> None:
    """Raise `MemoryError` before reading weights that do not fit in this machine's memory."""
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    own = config.dtype if dtype == "auto" and isinstance(config.dtype, torch.dtype) else None
    width = (own or torch.float32).itemsize
    needed = width * sum(value.numel() for value in network.parameters())
    available = memory_for_this_process()
    if available is not None and needed > available:
        raise MemoryError(
            f"its weights take {needed / 1e9:.2g} GB of this machine's memory, which has "
            f"{available / 1e9:.2g} GB; use a smaller model or a larger machine"
        )


def _check_all_used(module: PreTrainedModel, loaded: dict[str, Any]) -> None:
    """Raise `ValueError` if the files lack a weight, or have one without a place in the network.

    transformers initialises missing weights randomly and drops the others. It does not list weights
    that it expects to drop. Old files also hold buffers, such as masks, that are now computed.
    """
    buffers = tuple(name for name, _ in module.named_buffers())
    unused = [
        name
        for name in map(str, loaded["unexpected_keys"])
        if not (_MASK.search(name) or any(buffer.endswith(name) for buffer in buffers))
    ]
    shapes = [
        f"{name} (shape {list(saved)} in the files, {list(expected)} by config.json)"
        for name, saved, expected in loaded["mismatched_keys"]
    ]
    problems = {
        "the weight files lack tensors that config.json asks for": loaded["missing_keys"],
        "the weight files have tensors that config.json has no place for": unused,
        "the weight files have tensors of another shape than config.json says": shapes,
    }
    for problem, tensors in problems.items():
        if tensors:
            raise ValueError(
                f"{problem}. There are {len(tensors)}; the first is {min(map(str, tensors))}. "
                "Use a config.json and weight files that were saved together"
            )


def _forget_quantisation(module: PreTrainedModel) -> None:
    """Make a network from a GGUF file an ordinary float32 network that can be saved.

    transformers unpacks the weights (packed ones have no gradient), but still marks the network as
    quantised, and refuses to save it.

    Raises:
        ValueError: the weights are still packed.
    """
    if getattr(module, "hf_quantizer", None) is None:
        return
    packed = {str(value.dtype) for value in module.parameters() if value.dtype != torch.float32}
    if packed:
        raise ValueError(f"its weights are still quantised ({', '.join(sorted(packed))})")
    module.hf_quantizer = None  # type: ignore[assignment]
    del module.config.quantization_config


def _looks_like_a_path(name: str) -> bool:
    """Return whether `name` is a path and not a hub id ("model" or "owner/model")."""
    return name.startswith((os.sep, ".", "~")) or name.count("/") > 1 or name.endswith(".gguf")


def _explain(name: str, error: Exception) -> str:
    near = nearest(name, registry.names("models"), 0.6)  # "gpt2" is half of "tiny-gpt"
    hint = f"{near} ".lstrip()
    reason = " ".join(str(error).split())
    if "trust_remote_code" in reason:  # fedsim has no such option
        reason = "it needs its own code, and fedsim never runs code of a model"
    return (
        f"model.name_or_path = {name!r}: {hint}neither a built-in model nor a transformers "
        f"folder, GGUF file or hub id that can be opened here: {reason}"
    )
