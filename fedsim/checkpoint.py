"""Server states on disk: safetensors and JSON, nothing that executes when read."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedsim.accounting.ledger import Ledger
from fedsim.errors import ConfigError
from fedsim.json_text import is_count, parse_json
from fedsim.paths import write_atomically
from fedsim.state import ServerState

_FORMAT, _READABLE = 2, (1, 2)  # 1 knew constant clips only
_KEY = "fedsim"


def save_checkpoint(folder: Path, state: ServerState, keep: int) -> Path:
    """Write `round-NNNNNN.safetensors` whole or not at all, then drop all but the last `keep`."""
    tensors = {f"parameters/{name}": value for name, value in state.parameters.items()}
    tensors |= {f"optimizer/{name}": value for name, value in state.optimizer_state.items()}
    head = {
        "format": _FORMAT,
        "round": state.round,
        "ledger": state.ledger.to_json(),
        "clip_scale": state.clip_scale,
    }
    # One key: safetensors writes several in random order, and equal states give equal files.
    metadata = {_KEY: json.dumps(head)}
    content = save({name: value.contiguous() for name, value in tensors.items()}, metadata)
    path = folder / f"round-{state.round:06d}.safetensors"
    write_atomically(path, content)
    for old in sorted(folder.glob("round-*.safetensors"))[:-keep]:
        old.unlink()
    return path


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of the highest round, or None."""
    found = sorted(folder.glob("round-*.safetensors"))
    return found[-1] if found else None


def load_checkpoint(path: Path) -> ServerState:
    """Read a state back, bit for bit.

    Raises:
        ConfigError: not a checkpoint, damaged, or of another format version.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"checkpoint {path}: cannot be read: {error}") from None
    try:
        head = parse_json(metadata[_KEY])
        version, done, ledger = head["format"], head["round"], head["ledger"]
        scale = float(head["clip_scale"]) if version == _FORMAT else 1.0
        if not 0.0 < scale < math.inf:
            raise ValueError(f"clip_scale = {scale}")
        if not is_count(done):
            raise ValueError(f"round = {done!r}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"checkpoint {path}: no head of fedsim's: {error!r}") from None
    if version not in _READABLE:
        raise ConfigError(f"checkpoint {path}: format {version!r}, this version reads {_READABLE}")
    parameters = _part(tensors, "parameters/")
    if not parameters or any(value.dtype != torch.float32 for value in parameters.values()):
        raise ConfigError(f"checkpoint {path}: its parameters are missing, or not float32")
    return ServerState(
        round=done,
        parameters=parameters,
        optimizer_state=_part(tensors, "optimizer/"),
        ledger=Ledger.from_json(ledger),
        clip_scale=scale,
    )


def _part(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
