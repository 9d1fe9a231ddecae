"""Server states on disk: safetensors and JSON under a checksum, nothing that executes when read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedsim.accounting.ledger import Ledger
from fedsim.errors import ConfigError
from fedsim.json_text import is_count, parse_json
from fedsim.paths import write_atomically
from fedsim.sealing import PLACEHOLDER, is_intact, sealed
from fedsim.state import ServerState
from fedsim.tensors import Tensors

_FORMAT, _READABLE = 3, (1, 2, 3)  # 1 knew constant clips only, 2 had no checksum
_WITH_SCALE = (2, 3)
_NAME = re.compile(r"round-\d+\.safetensors")
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
        "sha256": PLACEHOLDER,
    }
    # One key: safetensors writes several in random order, and equal states give equal files.
    metadata = {_KEY: json.dumps(head)}
    content = save({name: value.contiguous() for name, value in tensors.items()}, metadata)
    path = folder / f"round-{state.round:06d}.safetensors"
    write_atomically(path, sealed(content))
    for old in checkpoints_in(folder)[:-keep]:
        old.unlink()
    return path


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints in order of their rounds; other files are passed over."""
    return sorted(
        (p for p in folder.glob("round-*.safetensors") if _NAME.match(p.name)), key=round_of
    )


def round_of(path: Path) -> int:
    """Return the number of rounds behind a checkpoint, by its name."""
    return int(path.stem.removeprefix("round-"))


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of the highest round, or None."""
    found = checkpoints_in(folder)
    return found[-1] if found else None


def load_checkpoint(path: Path) -> ServerState:
    """Read a state back, bit for bit.

    Raises:
        ConfigError: not a checkpoint, damaged, or of another format version; it names the file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"checkpoint {path}: cannot be read: {error}") from None
    try:
        head = parse_json(metadata[_KEY])
        # Whatever the version: a bit that changed may have made another of it.
        digest = head["sha256"] if "sha256" in head or head["format"] == _FORMAT else None
        whole = digest is None or is_intact(path, str(digest))
    except (KeyError, TypeError, ValueError) as error:  # JSON's error is a ValueError
        raise ConfigError(f"checkpoint {path}: no head of fedsim's: {error!r}") from None
    if not whole:
        raise ConfigError(f"checkpoint {path}: damaged: its content does not fit its checksum")
    return _state(path, head, tensors)


def _state(path: Path, head: Mapping[str, Any], tensors: Tensors) -> ServerState:
    try:
        version, done, ledger = head["format"], head["round"], head["ledger"]
        scale = float(head["clip_scale"]) if version in _WITH_SCALE else 1.0
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
    try:
        charged = Ledger.from_json(ledger)
    except ConfigError as error:
        raise ConfigError(f"checkpoint {path}: {error}") from None
    return ServerState(
        round=done,
        parameters=parameters,
        optimizer_state=_part(tensors, "optimizer/"),
        ledger=charged,
        clip_scale=scale,
    )


def _part(tensors: Tensors, prefix: str) -> Tensors:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
